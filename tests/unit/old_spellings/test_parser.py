"""Files of arguments that were written for transformers 4."""

import dataclasses
import json

import pytest

import portico


@dataclasses.dataclass
class DataArguments:
    no_cuda: str = "a field of the script's own"
    folder: str = "data"


OLD = {"evaluation_strategy": "steps", "per_gpu_train_batch_size": 3, "group_by_length": True}


@pytest.fixture
def given(tmp_path):
    return {"output_dir": str(tmp_path), "report_to": "none", "use_cpu": True, **OLD}


def parsed_dict(parser, given, tmp_path):
    return parser.parse_dict(given)


def parsed_json(parser, given, tmp_path):
    (tmp_path / "arguments.json").write_text(json.dumps(given), encoding="utf-8")
    return parser.parse_json_file(tmp_path / "arguments.json")


def parsed_yaml(parser, given, tmp_path):
    # JSON is YAML.
    (tmp_path / "arguments.yaml").write_text(json.dumps(given), encoding="utf-8")
    return parser.parse_yaml_file(tmp_path / "arguments.yaml")


@pytest.mark.parametrize("parse", [parsed_dict, parsed_json, parsed_yaml])
def test_older_names_are_taken(parse, given, tmp_path):
    parser = portico.HfArgumentParser(portico.TrainingArguments)
    with pytest.warns(FutureWarning):
        (args,) = parse(parser, given, tmp_path)
    assert (args.eval_strategy, args.per_device_train_batch_size) == ("steps", 3)
    assert args.train_sampling_strategy == "group_by_length"


def test_unknown_names_are_refused_as_before(given):
    parser = portico.HfArgumentParser(portico.TrainingArguments)
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match=r"Some keys are not used .*\['lerning_rate'\]"):
        parser.parse_dict({**given, "lerning_rate": 1.0})


def test_two_names_that_differ_are_refused(given):
    parser = portico.HfArgumentParser(portico.TrainingArguments)
    with pytest.warns(FutureWarning), pytest.raises(portico.InputError, match="two spellings of one argument"):
        parser.parse_dict({**given, "eval_strategy": "epoch"})


def test_other_classes_are_left_alone():
    assert portico.HfArgumentParser(DataArguments).parse_dict({"no_cuda": "x"})[0].no_cuda == "x"
