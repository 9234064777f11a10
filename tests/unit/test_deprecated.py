"""Names of transformers 4: renamed and retired arguments, argument files, and methods of the trainer."""

import dataclasses
import inspect
import json
import warnings
from types import SimpleNamespace
from typing import ClassVar

import huggingface_hub
import numpy as np
import pytest
import torch
import transformers

import portico
from models import Line, Points, toy_arguments, toy_trainer
from portico.arguments import argument_rules, build_transformers_arguments
from portico.deprecated import REMOVED, RENAMED, AcceptsOlderNames, Honoured, Ignored, OlderArguments, Refused, Sets
from portico.experiments.settings import schema_of
from releases import since_transformers

VALUES = {
    "evaluation_strategy": "epoch",
    "no_cuda": True,
    "per_gpu_eval_batch_size": 3,
    "per_gpu_train_batch_size": 5,
    "push_to_hub_model_id": "us/toy",
    "push_to_hub_token": "secret",
    "torchdynamo": "eager",
    "warmup_ratio": 0.25,
    "xpu_backend": "gloo",
}


@dataclasses.dataclass
class OwnArguments(portico.TrainingArguments):
    temperature: float = 0.5


@pytest.fixture
def make(tmp_path):
    return lambda kind=portico.TrainingArguments, **given: kind(
        **{"output_dir": str(tmp_path / "toy"), "report_to": "none", **given}
    )


def test_every_renamed_argument_has_a_value():
    assert VALUES.keys() == RENAMED.keys()


@pytest.mark.parametrize("kind", [portico.TrainingArguments, OwnArguments])
@pytest.mark.parametrize("old", RENAMED)
def test_renamed_argument_warns_once(old, kind, make):
    with pytest.warns(
        FutureWarning, match=f"`{old}` is deprecated and will be removed in portico 2; use `{RENAMED[old].new}`"
    ) as caught:
        args = make(kind, **{old: VALUES[old]})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert getattr(args, RENAMED[old].new) == VALUES[old]
    assert getattr(args, old) == VALUES[old]
    assert old not in args.to_dict()


@pytest.mark.parametrize("old", sorted(RENAMED.keys() - {"no_cuda"}))
def test_conflicting_names_are_rejected(old, make):
    new = RENAMED[old].new
    other = {"eval_strategy": "steps", "warmup_steps": 100}.get(new, type(VALUES[old])(2))
    with (
        pytest.warns(FutureWarning),
        pytest.raises(portico.InputError, match=f"`{new}=.*` and `{old}=.*` are two spellings of one argument"),
    ):
        make(**{old: VALUES[old], new: other})


def test_explicit_default_conflicts_with_old_name(make):
    with pytest.warns(FutureWarning), pytest.raises(portico.InputError, match="two spellings"):
        make(evaluation_strategy="epoch", eval_strategy="no")


def test_agreeing_names_are_accepted(make):
    with pytest.warns(FutureWarning):
        assert make(no_cuda=True, use_cpu=True).use_cpu


def test_arguments_saved_by_transformers_4_are_accepted(make):
    with pytest.warns(FutureWarning):
        args = make(no_cuda=False, use_cpu=True, warmup_ratio=0.0, warmup_steps=50, push_to_hub_token=None)
    assert args.use_cpu
    assert args.warmup_steps == 50


def test_warmup_ratio_of_one(make):
    with pytest.warns(FutureWarning):
        assert make(warmup_ratio=1.0).get_warmup_steps(80) == 80
    with (
        pytest.warns(FutureWarning),
        pytest.raises(portico.InputError, match=r"`warmup_ratio=1\.5` is not a fraction of a run"),
    ):
        make(warmup_ratio=1.5)


@pytest.mark.parametrize("old", RENAMED)
def test_setting_renamed_attribute_warns(old, make):
    args, new = make(), RENAMED[old].new
    with pytest.warns(
        FutureWarning, match=f"`{old}` is deprecated and will be removed in portico 2; use `{new}`"
    ) as caught:
        setattr(args, old, VALUES[old])
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert getattr(args, new) == getattr(args, old) == VALUES[old]


def test_attribute_is_converted_as_an_argument_is(make):
    args = make()
    with pytest.warns(FutureWarning):
        args.warmup_ratio = 1.0
    assert args.get_warmup_steps(80) == 80
    with pytest.warns(FutureWarning):
        args.warmup_ratio = None
    assert args.warmup_steps is None


def test_current_names_do_not_warn(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = make(eval_strategy="epoch")
        copied = dataclasses.replace(args, eval_strategy="no")
    assert copied.eval_strategy == copied.evaluation_strategy == "no"


def test_signature_lists_the_fields():
    parameters = inspect.signature(portico.TrainingArguments).parameters
    assert list(parameters) == [field.name for field in dataclasses.fields(portico.TrainingArguments) if field.init]
    assert inspect.signature(OwnArguments).parameters["temperature"].default == 0.5


@pytest.mark.parametrize("old", RENAMED)
def test_parser_accepts_renamed_options(old, tmp_path):
    parser = transformers.HfArgumentParser((OwnArguments,))
    line = ["--output_dir", str(tmp_path), "--report_to", "none", f"--{old}", str(VALUES[old])]
    with pytest.warns(
        FutureWarning, match=f"`--{old}` is deprecated and will be removed in portico 2; use `--{RENAMED[old].new}`"
    ) as caught:
        (args,) = parser.parse_args_into_dataclasses(line)
    assert len(caught) == 1
    assert getattr(args, RENAMED[old].new) == VALUES[old]


def test_parser_accepts_renamed_flag(tmp_path):
    parser = transformers.HfArgumentParser((portico.TrainingArguments,))
    with pytest.warns(FutureWarning, match="`--no-cuda`|`--no_cuda`"):
        (args,) = parser.parse_args_into_dataclasses(
            ["--output_dir", str(tmp_path), "--report_to", "none", "--no-cuda"]
        )
    assert args.use_cpu


@since_transformers("5.10")
def test_parser_accepts_renamed_options_of_fields_that_are_turned_off():
    # As our arguments do on releases of transformers that still have the older field.
    @dataclasses.dataclass
    class Upstream(transformers.TrainingArguments):
        warmup_ratio: ClassVar[None] = None

    @dataclasses.dataclass
    class Arguments(OlderArguments, Upstream, metaclass=AcceptsOlderNames):
        pass

    assert "--warmup-ratio" in transformers.HfArgumentParser(Arguments).format_help()


def test_portico_command_line_knows_renamed_arguments():
    assert set(RENAMED) <= set(schema_of(portico.TrainingArguments).known)
    assert argument_rules()["per_gpu_train_batch_size"] == argument_rules()["per_device_train_batch_size"]


def test_replace_keeps_arguments_class(tmp_path):
    args = toy_arguments(tmp_path)
    assert type(dataclasses.replace(args)) is portico.TrainingArguments


EXPRESSED = {
    "adafactor": (True, "optim", "adafactor"),
    "dispatch_batches": (False, "accelerator_config", {"dispatch_batches": False}),
    "fsdp_min_num_params": (7, "fsdp_config", {"min_num_params": 7}),
    "fsdp_transformer_layer_cls_to_wrap": ("Layer", "fsdp_config", {"transformer_layer_cls_to_wrap": "Layer"}),
    "group_by_length": (True, "train_sampling_strategy", "group_by_length"),
    "include_inputs_for_metrics": (True, "include_for_metrics", ["inputs"]),
    "push_to_hub_organization": ("us", "hub_model_id", "us/toy"),
    "split_batches": (True, "accelerator_config", {"split_batches": True}),
    "tpu_metrics_debug": (True, "debug", [transformers.debug_utils.DebugOption.TPU_METRICS_DEBUG]),
}
HONOURED = {"logging_dir": "elsewhere", "use_legacy_prediction_loop": True}
WITHOUT_EFFECT = {
    "fp16_backend": "cuda_amp",
    "fp16_opt_level": "O2",
    "half_precision_backend": "cpu_amp",
    "include_tokens_per_second": True,
    "jit_mode_eval": True,
    "mp_parameters": "x",
    "overwrite_output_dir": True,
    "ray_scope": "all",
    "save_safetensors": False,
    "tpu_num_cores": 8,
    "use_ipex": True,
    "use_mps_device": True,
}
REFUSED = {
    "fp16_backend": ("apex", "set `fp16=True`"),
    "half_precision_backend": ("apex", "set `fp16=True`"),
    "past_index": (0, "`training_step` of your own"),
    "sharded_ddp": ("simple", "set `strategy='fsdp'`"),
}


def test_every_removed_argument_has_a_value():
    assert EXPRESSED.keys() == {name for name, rows in REMOVED.items() if isinstance(rows[-1], Sets)}
    assert HONOURED.keys() == {name for name, rows in REMOVED.items() if isinstance(rows[-1], Honoured)}
    assert WITHOUT_EFFECT.keys() == {name for name, rows in REMOVED.items() if isinstance(rows[-1], Ignored)}
    assert REFUSED.keys() == {name for name, rows in REMOVED.items() if isinstance(rows[0], Refused)}
    assert [name for name, rows in REMOVED.items() if len(rows) > 1] == ["fp16_backend", "half_precision_backend"]


def test_every_older_argument_has_one_row():
    assert REMOVED.keys() == {field.name for field in dataclasses.fields(OlderArguments)}
    current = {field.name for field in dataclasses.fields(portico.TrainingArguments)} - REMOVED.keys()
    assert not RENAMED.keys() & (current | REMOVED.keys())
    targets = {row.new for row in RENAMED.values()}
    targets |= {row.successor for rows in REMOVED.values() for row in rows if isinstance(row, Sets)}
    assert targets <= current


@pytest.mark.parametrize("name", EXPRESSED)
def test_retired_argument_sets_successor(name, make):
    value, successor, expected = EXPRESSED[name]
    with pytest.warns(FutureWarning, match=f"`{name}` is deprecated .*; it now sets `{successor}=") as caught:
        args = make(**{name: value})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    actual = getattr(args, successor)
    if isinstance(expected, dict):
        actual = actual if isinstance(actual, dict) else actual.to_dict()
        assert {key: actual[key] for key in expected} == expected
    else:
        assert actual == expected
    assert getattr(args, name) == value


@pytest.mark.parametrize(
    ("name", "successor", "other"),
    [("adafactor", "optim", "sgd"), ("group_by_length", "train_sampling_strategy", "sequential")],
)
def test_retired_argument_conflicting_with_successor_is_rejected(name, successor, other, make):
    with pytest.raises(portico.InputError, match=f"`{successor}='{other}'` and `{name}=True` contradict each other"):
        make(**{name: True, successor: other})


def test_retired_argument_extends_successor(make):
    with pytest.warns(FutureWarning):
        args = make(include_inputs_for_metrics=True, include_for_metrics=["loss"])
    assert args.include_for_metrics == ["loss", "inputs"]
    with pytest.warns(FutureWarning):
        args = make(push_to_hub_organization="us", hub_model_id="named")
    assert args.hub_model_id == "us/named"


def test_retired_argument_with_config_file_is_rejected(make):
    with pytest.raises(portico.InputError, match=r"belongs in the configuration that 'fsdp\.json' names"):
        make(fsdp_min_num_params=3, fsdp_config="fsdp.json")


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_argument_without_effect_warns_once(name, make):
    with pytest.warns(
        FutureWarning, match=f"`{name}` has no effect any more and will be removed in portico 2: "
    ) as caught:
        args = make(**{name: WITHOUT_EFFECT[name]})
    assert len(caught) == 1
    assert getattr(args, name) == WITHOUT_EFFECT[name]


@pytest.mark.parametrize("name", HONOURED)
def test_honoured_argument_warns_once(name, make):
    with pytest.warns(FutureWarning, match=f"`{name}` is deprecated and will be removed in portico 2; ") as caught:
        make(**{name: HONOURED[name]})
    assert len(caught) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_removed_feature_is_rejected(name, make):
    value, instead = REFUSED[name]
    with pytest.raises(portico.InputError, match=f"`{name}={value!r}` is no longer supported; .*{instead}"):
        make(**{name: value})


def test_retired_defaults_do_not_warn(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = make(**{field.name: field.default for field in dataclasses.fields(OlderArguments)})
    assert not args.to_dict().keys() & OlderArguments.__annotations__.keys()


def test_retired_arguments_are_not_saved(make):
    with pytest.warns(FutureWarning):
        plain = build_transformers_arguments(make(use_ipex=True))
    assert not vars(plain).keys() & OlderArguments.__annotations__.keys()


def test_parser_accepts_retired_options(tmp_path):
    parser = transformers.HfArgumentParser((portico.TrainingArguments,))
    line = ["--output_dir", str(tmp_path), "--report_to", "none", "--overwrite_output_dir", "--group_by_length"]
    with pytest.warns(FutureWarning):
        (args,) = parser.parse_args_into_dataclasses(line)
    assert args.overwrite_output_dir
    assert args.train_sampling_strategy == "group_by_length"


def test_logging_dir_is_used(tmp_path):
    pytest.importorskip("tensorboard")
    folder = tmp_path / "elsewhere"
    with pytest.warns(FutureWarning, match="`logging_dir` is deprecated"):
        toy_trainer(tmp_path, report_to="tensorboard", logging_dir=str(folder)).train()
    assert list(folder.glob("events*"))


def test_overridden_prediction_loop_is_called(tmp_path):
    class Older(portico.Trainer):
        def prediction_loop(self, dataloader, description, *args, **kwargs):
            self.ran = description
            return self.evaluation_loop(dataloader, description, *args, **kwargs)

    with pytest.warns(FutureWarning, match="`use_legacy_prediction_loop` is deprecated"):
        trainer = toy_trainer(tmp_path, Older, use_legacy_prediction_loop=True)
    trainer.evaluate()
    assert trainer.ran == "Evaluation"
    trainer.predict(trainer.eval_dataset)
    assert trainer.ran == "Prediction"
    plain = toy_trainer(tmp_path, Older)
    plain.evaluate()
    assert not hasattr(plain, "ran")


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
def test_hf_argument_parser_accepts_old_names(parse, given, tmp_path):
    parser = portico.HfArgumentParser(portico.TrainingArguments)
    with pytest.warns(FutureWarning):
        (args,) = parse(parser, given, tmp_path)
    assert (args.eval_strategy, args.per_device_train_batch_size) == ("steps", 3)
    assert args.train_sampling_strategy == "group_by_length"


def test_hf_argument_parser_rejects_unknown_names(given):
    parser = portico.HfArgumentParser(portico.TrainingArguments)
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match=r"Some keys are not used .*\['lerning_rate'\]"):
        parser.parse_dict({**given, "lerning_rate": 1.0})


def test_hf_argument_parser_rejects_conflicting_names(given):
    parser = portico.HfArgumentParser(portico.TrainingArguments)
    with pytest.warns(FutureWarning), pytest.raises(portico.InputError, match="two spellings of one argument"):
        parser.parse_dict({**given, "eval_strategy": "epoch"})


def test_hf_argument_parser_keeps_other_dataclasses():
    assert portico.HfArgumentParser(DataArguments).parse_dict({"no_cuda": "x"})[0].no_cuda == "x"


class Tokenizer:
    model_input_names = ("x",)


def test_tokenizer_becomes_processing_class(tmp_path):
    tokenizer = Tokenizer()
    with pytest.warns(
        FutureWarning, match="`tokenizer` is deprecated and will be removed in portico 2; use `processing_class`"
    ) as caught:
        trainer = toy_trainer(tmp_path, parts={"tokenizer": tokenizer})
    assert len(caught) == 1
    assert trainer.processing_class is tokenizer
    with pytest.warns(
        FutureWarning,
        match=r"`Trainer\.tokenizer` is deprecated and will be removed in portico 2; use `Trainer\.processing_class`",
    ):
        assert trainer.tokenizer is tokenizer
    with pytest.warns(FutureWarning, match=r"Trainer\.tokenizer"):
        trainer.tokenizer = None
    assert trainer.processing_class is None


def test_tokenizer_and_other_processing_class_are_rejected(tmp_path):
    parts = {"tokenizer": Tokenizer(), "processing_class": Tokenizer()}
    with (
        pytest.warns(FutureWarning),
        pytest.raises(portico.InputError, match="two spellings of one argument, and different objects"),
    ):
        toy_trainer(tmp_path, parts=parts)


def test_same_tokenizer_and_processing_class_are_accepted(tmp_path):
    tokenizer = Tokenizer()
    with pytest.warns(FutureWarning):
        assert toy_trainer(tmp_path, parts={"tokenizer": tokenizer, "processing_class": tokenizer})


def test_overridden_prediction_loop_is_not_asked_for_by_arguments_of_transformers(tmp_path):
    class Older(portico.Trainer):
        def prediction_loop(self, *args, **kwargs):
            raise AssertionError("only with `use_legacy_prediction_loop=True`")

    args = transformers.TrainingArguments(str(tmp_path), report_to="none", use_cpu=True)
    assert "eval_loss" in Older(Line(), args, eval_dataset=Points(4)).evaluate()


def test_prediction_loop_equals_evaluation_loop(tmp_path):
    trainer = toy_trainer(tmp_path)
    loader = trainer.get_eval_dataloader()
    with pytest.warns(FutureWarning, match=r"use `Trainer\.evaluation_loop`"):
        older = trainer.prediction_loop(loader, "Evaluation")
    assert older.metrics == trainer.evaluation_loop(loader, "Evaluation").metrics


def test_init_git_repo_creates_repository(tmp_path, monkeypatch):
    made = []

    def create_repo(hub, name, **options):
        made.append(name)
        return SimpleNamespace(repo_id=name)

    monkeypatch.setattr(huggingface_hub.HfApi, "create_repo", create_repo)
    with pytest.warns(FutureWarning, match="init_hf_repo"):
        toy_trainer(tmp_path / "toy").init_git_repo(at_init=True)
    assert made == ["toy"]


def test_old_gather_methods(tmp_path):
    trainer, tensor = toy_trainer(tmp_path), torch.ones(2, 3)
    assert trainer._nested_gather(None) is None
    assert torch.equal(trainer._nested_gather(tensor), tensor)
    assert torch.equal(trainer._pad_across_processes(tensor), tensor)
    assert trainer._gather_and_numpify(None, "logits") is None
    assert isinstance(trainer._gather_and_numpify(tensor, "logits"), np.ndarray)


def test_old_checkpoint_methods(tmp_path):
    class Keeping(portico.Trainer):
        def _rotate_checkpoints(self, use_mtime=False, output_dir=None):
            self.rotated = output_dir

    saving = {"save_strategy": "steps", "save_steps": 4, "save_total_limit": 1}
    trainer = toy_trainer(tmp_path, Keeping, **saving)
    trainer.train()
    names = [path.rpartition("-")[2] for path in trainer._sorted_checkpoints()]
    assert names == ["4", "8", "10"]
    assert trainer.rotated == str(tmp_path)
    toy_trainer(tmp_path, **saving)._rotate_checkpoints()
    assert len(list(tmp_path.glob("checkpoint-*"))) == 1


def test_training_step_written_for_apex_and_scaler(tmp_path):
    class Older(portico.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            if self.do_grad_scaling:
                self.scaler.scale(loss).backward()
            elif self.use_apex or self.use_cuda_amp or self.use_cpu_amp or self.sharded_ddp:
                raise AssertionError
            else:
                self.accelerator.backward(loss)
            return loss.detach()

    plain = toy_trainer(tmp_path)
    assert toy_trainer(tmp_path, Older).train().training_loss == plain.train().training_loss


def metrics(prediction):
    return {}


@pytest.mark.parametrize(
    ("after", "match"),
    [
        ([metrics], "`compute_loss_func` is called with the arguments .* If it is meant as `compute_metrics`"),
        ([None, [transformers.TrainerCallback()]], "`compute_metrics` is a list of callbacks"),
    ],
)
def test_old_positional_arguments_are_rejected(after, match, tmp_path):
    args = toy_arguments(tmp_path)
    with pytest.raises(portico.InputError, match=match) as caught:
        portico.Trainer(Line(), args, None, Points(), Points(4), None, None, *after).train()
    assert isinstance(caught.value, TypeError)
    assert "by keyword" in str(caught.value)


def test_loss_function_without_signature_is_accepted(tmp_path):
    assert toy_trainer(tmp_path, parts={"compute_loss_func": lambda outputs, labels, **options: outputs["loss"]})


@dataclasses.dataclass
class OwnWarmup(portico.TrainingArguments):
    """Arguments of a library that has a field with the older name of one of transformers."""

    warmup_ratio: float = dataclasses.field(default=0.0, metadata={"help": "Part of the run."})


@pytest.mark.filterwarnings("error")
def test_field_of_a_subclass_wins_over_an_older_name(tmp_path):
    given = {"output_dir": str(tmp_path), "warmup_ratio": 0.25}
    parser = portico.deprecated.HfArgumentParser(OwnWarmup)
    command = ["--output_dir", str(tmp_path), "--warmup_ratio", "0.25"]
    (parsed,) = transformers.HfArgumentParser(OwnWarmup).parse_args_into_dataclasses(command)
    for args in (OwnWarmup(**given), *parser.parse_dict(given), parsed):
        assert args.warmup_ratio == args.to_dict()["warmup_ratio"] == 0.25
        assert args.warmup_steps == 0
    assert OwnWarmup(str(tmp_path), warmup_steps=3).warmup_steps == 3
    names = {field.name for field in dataclasses.fields(portico.TrainingArguments)}
    assert {field.name for field in dataclasses.fields(OwnWarmup)} == {*names, "warmup_ratio"}


def test_field_of_a_subclass_may_have_no_class_default(tmp_path):
    # As in the arguments of sentence-transformers, which set the older name themselves.
    @dataclasses.dataclass
    class Arguments(portico.TrainingArguments):
        warmup_ratio: float | None = dataclasses.field(default_factory=lambda: None)

        def __post_init__(self):
            if self.warmup_ratio is not None:
                self.warmup_steps, self.warmup_ratio = self.warmup_ratio, None
            super().__post_init__()

    assert (Arguments(str(tmp_path)).warmup_ratio, Arguments(str(tmp_path)).warmup_steps) == (None, 0)
    assert Arguments(str(tmp_path), warmup_ratio=0.25).warmup_steps == 0.25
