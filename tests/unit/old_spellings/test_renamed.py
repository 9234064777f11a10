"""Training arguments under the names that transformers 4 had for them."""

import dataclasses
import inspect
import warnings

import pytest
import transformers

import portico
from portico.deprecated import RENAMED
from portico.settings import argument_rules, settings_of
from unit.toy import toy_arguments

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
    return lambda kind=portico.TrainingArguments, **given: kind(output_dir=str(tmp_path), report_to="none", **given)


def test_every_renamed_argument_is_tested():
    assert VALUES.keys() == RENAMED.keys()


@pytest.mark.parametrize("kind", [portico.TrainingArguments, OwnArguments])
@pytest.mark.parametrize("old", RENAMED)
def test_an_older_name_is_taken_with_one_warning(old, kind, make):
    with pytest.warns(
        FutureWarning, match=f"`{old}` is deprecated and will be removed in portico 2; use `{RENAMED[old]}`"
    ) as caught:
        args = make(kind, **{old: VALUES[old]})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert getattr(args, RENAMED[old]) == VALUES[old]
    assert getattr(args, old) == VALUES[old]
    assert old not in args.to_dict()


@pytest.mark.parametrize("old", sorted(RENAMED.keys() - {"no_cuda"}))
def test_two_names_that_differ_are_refused(old, make):
    new = RENAMED[old]
    other = {"eval_strategy": "steps", "warmup_steps": 100}.get(new, type(VALUES[old])(2))
    with (
        pytest.warns(FutureWarning),
        pytest.raises(portico.InputError, match=f"`{new}=.*` and `{old}=.*` are two spellings of one argument"),
    ):
        make(**{old: VALUES[old], new: other})


def test_an_explicit_default_contradicts_too(make):
    with pytest.warns(FutureWarning), pytest.raises(portico.InputError, match="two spellings"):
        make(evaluation_strategy="epoch", eval_strategy="no")


def test_two_names_that_agree_are_taken(make):
    with pytest.warns(FutureWarning):
        assert make(no_cuda=True, use_cpu=True).use_cpu


def test_arguments_written_out_by_an_older_version_are_taken(make):
    with pytest.warns(FutureWarning):
        args = make(no_cuda=False, use_cpu=True, warmup_ratio=0.0, warmup_steps=50, push_to_hub_token=None)
    assert args.use_cpu
    assert args.warmup_steps == 50


def test_a_whole_run_of_warmup_is_not_one_step(make):
    with pytest.warns(FutureWarning):
        assert make(warmup_ratio=1.0).get_warmup_steps(80) == 80
    with (
        pytest.warns(FutureWarning),
        pytest.raises(portico.InputError, match=r"`warmup_ratio=1\.5` is not a fraction of a run"),
    ):
        make(warmup_ratio=1.5)


def test_an_older_name_is_written_with_a_warning(make):
    args = make()
    with pytest.warns(
        FutureWarning,
        match="`evaluation_strategy` is deprecated and will be removed in portico 2; use `eval_strategy`",
    ):
        args.evaluation_strategy = "steps"
    assert args.eval_strategy == "steps"


def test_present_names_alone_warn_of_nothing(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = make(eval_strategy="epoch")
        copied = dataclasses.replace(args, eval_strategy="no")
    assert copied.eval_strategy == copied.evaluation_strategy == "no"


def test_the_signature_is_that_of_the_fields():
    parameters = inspect.signature(portico.TrainingArguments).parameters
    assert list(parameters) == [field.name for field in dataclasses.fields(portico.TrainingArguments) if field.init]
    assert inspect.signature(OwnArguments).parameters["temperature"].default == 0.5


@pytest.mark.parametrize("old", RENAMED)
def test_a_parser_takes_older_names(old, tmp_path):
    parser = transformers.HfArgumentParser((OwnArguments,))
    line = ["--output_dir", str(tmp_path), "--report_to", "none", f"--{old}", str(VALUES[old])]
    with pytest.warns(
        FutureWarning, match=f"`--{old}` is deprecated and will be removed in portico 2; use `--{RENAMED[old]}`"
    ) as caught:
        (args,) = parser.parse_args_into_dataclasses(line)
    assert len(caught) == 1
    assert getattr(args, RENAMED[old]) == VALUES[old]


def test_a_parser_takes_an_older_switch(tmp_path):
    parser = transformers.HfArgumentParser((portico.TrainingArguments,))
    with pytest.warns(FutureWarning, match="`--no-cuda`|`--no_cuda`"):
        (args,) = parser.parse_args_into_dataclasses(
            ["--output_dir", str(tmp_path), "--report_to", "none", "--no-cuda"]
        )
    assert args.use_cpu


def test_the_command_line_of_portico_takes_older_names():
    assert set(RENAMED) <= set(settings_of(portico.TrainingArguments).known)
    assert argument_rules()["per_gpu_train_batch_size"] == argument_rules()["per_device_train_batch_size"]


def test_copies_of_the_arguments_keep_their_class(tmp_path):
    args = toy_arguments(tmp_path)
    assert type(dataclasses.replace(args)) is portico.TrainingArguments
