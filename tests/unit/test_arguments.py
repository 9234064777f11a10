import copy
import dataclasses
import json
import pickle

import pytest
import torch
import transformers
from accelerate.parallelism_config import ParallelismConfig
from transformers.training_args import ParallelMode

import portico
from fresh_process import assert_runs_anew
from models import toy_arguments, toy_trainer
from portico.arguments import LightningPlacement, TrainingArguments, adopt_arguments, build_transformers_arguments
from portico.deprecated import OlderArguments
from releases import since_transformers


@dataclasses.dataclass
class OwnArguments(transformers.TrainingArguments):
    temperature: float = 0.5


@dataclasses.dataclass
class OwnPorticoArguments(portico.TrainingArguments):
    temperature: float = 0.5


CLASSES = [transformers.TrainingArguments, OwnArguments, portico.TrainingArguments, OwnPorticoArguments]


@pytest.mark.parametrize("arguments_class", CLASSES)
def test_arguments_of_any_class_are_used_unchanged(arguments_class, tmp_path):
    args = toy_arguments(tmp_path, arguments_class, max_steps=1)
    trainer = toy_trainer(tmp_path, parts={"args": args})
    assert trainer.args is args
    assert isinstance(args, arguments_class)
    assert trainer.train().global_step == 1


@pytest.mark.parametrize("arguments_class", CLASSES)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda args: pickle.loads(pickle.dumps(args))])
def test_used_arguments_can_be_copied(copied, arguments_class, tmp_path):
    args = toy_arguments(tmp_path, arguments_class, learning_rate=0.25)
    toy_trainer(tmp_path, parts={"args": args})
    twin = copied(args)
    assert isinstance(twin, arguments_class)
    assert twin.learning_rate == 0.25
    assert twin.device == torch.device("cpu")
    assert twin.world_size == 1
    assert twin.to_dict() == args.to_dict()


@pytest.mark.parametrize("arguments_class", CLASSES)
def test_used_arguments_can_be_serialized_and_replaced(arguments_class, tmp_path):
    args = toy_arguments(tmp_path, arguments_class, learning_rate=0.25)
    toy_trainer(tmp_path, parts={"args": args})
    assert json.loads(args.to_json_string())["learning_rate"] == 0.25
    assert "learning_rate=0.25" in str(args)
    assert args.to_sanitized_dict()["learning_rate"] == 0.25
    if issubclass(arguments_class, portico.TrainingArguments):
        assert dataclasses.replace(args, learning_rate=0.5).learning_rate == 0.5


@pytest.mark.parametrize("given", [{"tp_size": 2}, ParallelismConfig(tp_size=2)], ids=["dict", "accelerate"])
def test_sizes_of_the_mesh_can_be_serialized(given, tmp_path):
    args = toy_arguments(tmp_path, devices=2, parallelism_config=given)
    assert json.loads(args.to_json_string())["parallelism_config"]["tp_size"] == 2
    assert "'tp_size': 2" in args.to_sanitized_dict()["parallelism_config"]
    assert args.parallelism_config is given


def test_subclass_field_is_kept(tmp_path):
    args = toy_arguments(tmp_path, OwnArguments, temperature=2.0)
    toy_trainer(tmp_path, parts={"args": args})
    assert args.to_dict()["temperature"] == 2.0
    assert copy.deepcopy(args).temperature == 2.0


def test_default_arguments_equal_transformers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = toy_trainer(tmp_path, parts={"args": None})
    assert trainer.args.output_dir == "tmp_trainer"
    assert (tmp_path / "tmp_trainer").is_dir()


@pytest.mark.parametrize("args", [{"output_dir": "x"}, 3, transformers.TrainingArguments])
def test_other_argument_types_are_rejected(args):
    with pytest.raises(TypeError, match=r"give `portico.TrainingArguments` or `transformers.TrainingArguments`"):
        adopt_arguments(args)


def test_foreign_arguments_of_the_same_name_are_told_apart():
    foreign = type("TrainingArguments", (), {"__module__": "elsewhere"})()
    with pytest.raises(TypeError, match=r"`args` is an instance of elsewhere\.TrainingArguments; give"):
        adopt_arguments(foreign)


def test_genuine_arguments_are_adopted_after_the_name_was_replaced(tmp_path, monkeypatch):
    genuine = toy_arguments(tmp_path, transformers.TrainingArguments)
    monkeypatch.setattr(transformers, "TrainingArguments", portico.TrainingArguments)
    assert adopt_arguments(genuine) is genuine


def test_adopting_is_idempotent(tmp_path):
    args = adopt_arguments(toy_arguments(tmp_path, OwnArguments))
    before = type(args)
    assert type(adopt_arguments(args)) is before


@pytest.mark.parametrize("arguments_class", CLASSES)
def test_device_is_known_before_a_run(arguments_class, tmp_path):
    args = adopt_arguments(toy_arguments(tmp_path, arguments_class))
    assert args.device == torch.device("cpu")
    assert (args.n_gpu, args.world_size, args.process_index, args.local_process_index) == (0, 1, 0, 0)
    assert args.parallel_mode is ParallelMode.NOT_PARALLEL
    assert args.should_save
    assert args.train_batch_size == 2


def test_saved_arguments_unpickle_as_transformers_class(tmp_path):
    args = toy_arguments(tmp_path, strategy="auto", learning_rate=0.25)
    plain = build_transformers_arguments(args)
    assert type(plain) is transformers.TrainingArguments
    assert plain.learning_rate == 0.25
    assert not hasattr(plain, "strategy")
    assert type(pickle.loads(pickle.dumps(plain))) is transformers.TrainingArguments


def test_arguments_from_command_line(tmp_path):
    parser = transformers.HfArgumentParser(portico.TrainingArguments)
    line = ["--output_dir", str(tmp_path), "--accelerator", "cpu", "--devices", "1", "--learning_rate", "0.5"]
    (args,) = parser.parse_args_into_dataclasses(line)
    assert (args.accelerator, args.devices, args.learning_rate) == ("cpu", 1, 0.5)


REBUILT = """
import sys, tempfile
import portico, transformers.trainer, transformers.training_args

transformers.trainer.Trainer = portico.Trainer
transformers.training_args.TrainingArguments = portico.TrainingArguments
# It executes the package `transformers` again, which forgets names that were set on it.
import transformers.processing_utils
from transformers import Trainer, TrainingArguments
from dataclasses import dataclass
from models import Line, Points

@dataclass
class TheirArguments(TrainingArguments):
    temperature: float = 0.5

class TheirTrainer(Trainer):
    def compute_loss(self, model, inputs, *args, **kwargs):
        return self.args.temperature * super().compute_loss(model, inputs, *args, **kwargs)

args = TheirArguments(tempfile.mkdtemp(), max_steps=1, use_cpu=True, report_to="none", disable_tqdm=True)
trainer = TheirTrainer(model=Line(), args=args, train_dataset=Points())
assert trainer.train().global_step == 1
assert isinstance(trainer, portico.Trainer)
"""


def test_library_is_rebuilt_on_classes_put_where_transformers_defines_them():
    assert_runs_anew(REBUILT, after=["torch", "lightning.pytorch"])


@since_transformers("5.23")
def test_adopted_arguments_have_the_fields_of_our_own_with_their_defaults():
    theirs = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    own = [one for one in dataclasses.fields(TrainingArguments) if one.name not in theirs | set(_retired_fields())]
    assert {one.name: one.default for one in own} == {
        name: getattr(LightningPlacement, name) for name in LightningPlacement.__annotations__
    }


def _retired_fields():
    return [field.name for field in dataclasses.fields(OlderArguments)]
