"""Error messages for invalid arguments, parts and data."""

import dataclasses
import inspect
from functools import partial

import huggingface_hub
import numpy as np
import pandas
import pytest
import torch
import transformers
from lightning.pytorch import Callback as LightningCallback
from lightning.pytorch.utilities import CombinedLoader
from torch.utils.data import DataLoader

import portico
from models import Line, Points, PointStream, ToyDataset, UnknownColumn, tiny_bert, toy_arguments, toy_trainer
from parity.peers import QUIET
from portico.arguments import READ_IN_EVALUATION, READ_IN_TRAINING
from portico.checkpoint import writer
from portico.deprecated import OlderArguments
from portico.distributed.placement import PLACEMENT
from portico.loop.validation import PASSED_ON
from releases import since_transformers


def refused(tmp_path, match, error=portico.InputError, parts=None, **changes):
    with pytest.raises(error, match=match):
        toy_trainer(tmp_path, parts=parts, **changes)


def refused_in_training(tmp_path, match, error=portico.InputError, parts=None, **changes):
    trainer = toy_trainer(tmp_path, parts=parts, **changes)
    with pytest.raises(error, match=match):
        trainer.train()


def refused_in_evaluation(tmp_path, match, error=portico.InputError, **changes):
    trainer = toy_trainer(tmp_path, **changes)
    with pytest.raises(error, match=match):
        trainer.evaluate()


def test_model_and_model_init_exclude_each_other(tmp_path):
    refused(tmp_path, "either a `model` or `model_init` argument.*give one of them", parts={"model": None})
    refused(tmp_path, "either a `model` or `model_init` argument, but not both", parts={"model_init": Line})


def test_model_init_signature(tmp_path):
    refused(tmp_path, "Let it return a model", parts={"model": None, "model_init": lambda: None})
    refused(tmp_path, "It takes 2; let it take none", parts={"model": None, "model_init": lambda trial, extra: Line()})


def test_model_init_and_optimizers_exclude_each_other(tmp_path):
    optimizer = torch.optim.SGD(Line().parameters())
    parts = {"model": None, "model_init": Line, "optimizers": (optimizer, None)}
    refused(tmp_path, "override the `create_optimizer_and_scheduler`", parts=parts)


def test_optimizers_and_optimizer_class_exclude_each_other(tmp_path):
    optimizer = torch.optim.SGD(Line().parameters())
    parts = {"optimizers": (optimizer, None), "optimizer_cls_and_kwargs": (torch.optim.SGD, {})}
    refused(tmp_path, "incompatible. Give one of them", parts=parts)


def test_model_without_loss_is_rejected(tmp_path):
    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    parts = {"model": transformers.BertModel(config), "train_dataset": ToyDataset(4)}
    with pytest.raises(ValueError, match=r"the following keys: last_hidden_state.*load one of the `AutoModelFor"):
        toy_trainer(tmp_path, parts=parts).train()


def test_model_without_loss_trains_with_compute_loss_func(tmp_path):
    class Embedder(portico.Trainer):
        def compute_loss(self, model, inputs, **kwargs):
            return model(**inputs).last_hidden_state.pow(2).mean()

    config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    parts = {"model": transformers.BertModel(config), "train_dataset": ToyDataset(4)}
    assert toy_trainer(tmp_path, Embedder, parts=parts, max_steps=1).train().global_step == 1


def test_evaluate_needs_dataset(tmp_path):
    refused(tmp_path, "to `no` or pass an `eval_dataset`", parts={"eval_dataset": None}, eval_strategy="epoch")
    trainer = toy_trainer(tmp_path, parts={"eval_dataset": None})
    with pytest.raises(portico.InputError, match="requires an eval_dataset"):
        trainer.evaluate()


class Both(Points):
    """Examples that can be read by number and one after the other."""

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration


def test_examples_with_numbers_may_be_an_iterator_too(tmp_path):
    toy_trainer(tmp_path, parts={"train_dataset": Both(8)}, max_steps=1).train()


def test_train_needs_dataset(tmp_path):
    with pytest.raises(portico.InputError, match="requires a train_dataset"):
        toy_trainer(tmp_path, parts={"train_dataset": None}).train()
    with pytest.raises(portico.InputError, match="`train_dataset` is empty"):
        toy_trainer(tmp_path, parts={"train_dataset": Points(0)}).train()


def test_stream_needs_max_steps(tmp_path):
    refused(tmp_path, "Set `max_steps`", parts={"train_dataset": PointStream()})


def test_short_stream_is_rejected(tmp_path):
    parts = {"train_dataset": PointStream()}
    trainer = toy_trainer(tmp_path, parts=parts, max_steps=2, gradient_accumulation_steps=6)
    with pytest.raises(portico.InputError, match=r"5 batches in epoch 0, fewer than the 6 .* would never end"):
        trainer.train()


def test_an_epoch_without_a_step_is_accepted_of_data_with_a_length(tmp_path):
    class Narrow(transformers.TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            args.gradient_accumulation_steps = 2

    # The epoch was planned as one window of three batches; under transformers it ends after one, without a step.
    parts = {"train_dataset": Points(6), "callbacks": [Narrow()]}
    trainer = toy_trainer(tmp_path, parts=parts, gradient_accumulation_steps=3, num_train_epochs=2)
    assert trainer.train().global_step == 0


def test_load_best_model_needs_evaluation(tmp_path):
    refused(tmp_path, "set it to 'loss'", save_strategy="best", eval_strategy="epoch")


def test_metric_for_best_model_must_exist(tmp_path):
    trainer = toy_trainer(tmp_path, eval_strategy="epoch", metric_for_best_model="f1")
    with pytest.raises(KeyError, match=r"set to 'eval_f1', .*eval_loss.*let `compute_metrics`") as raised:
        trainer.train()
    assert isinstance(raised.value, portico.InputError)
    assert trainer.state.epoch == 1


SEVERAL = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}


@pytest.mark.parametrize("metric", [None, "loss", "noon_loss"])
def test_best_metric_of_several_sets_is_checked_before_the_first_step(metric, tmp_path):
    sets = {"day": Points(4), "night": Points(4)}
    trainer = toy_trainer(tmp_path, parts={"eval_dataset": sets}, metric_for_best_model=metric, **SEVERAL)
    match = r"begin with `eval_day_`, `eval_night_`; set it to .*`metric_for_best_model='day_loss'`"
    with pytest.raises(portico.InputError, match=match):
        trainer.train()
    assert trainer.state.global_step == 0


class Average(transformers.TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        metrics["eval_loss"] = metrics.get("eval_night_loss", 0)


def test_best_metric_that_a_callback_adds_is_not_refused(tmp_path):
    parts = {"eval_dataset": {"day": Points(4), "night": Points(4)}, "callbacks": [Average()]}
    trainer = toy_trainer(tmp_path, parts=parts, metric_for_best_model="loss", **SEVERAL)
    trainer.train()
    assert trainer.state.best_metric is not None


def test_metric_of_several_values_is_saved_and_cannot_be_the_best(tmp_path):
    scores = {"per_class": np.array([0.1, 0.2]), "nested": {"a": torch.tensor([1.0])}, "plain": np.float32(0.5)}
    steps = {"eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1, "max_steps": 1}
    trainer = toy_trainer(tmp_path, parts={"compute_metrics": lambda prediction: scores}, **steps)
    trainer.train()
    trainer.save_metrics("eval", trainer.evaluate())
    (logs,) = [logs for logs in trainer.state.log_history if "eval_per_class" in logs][:1]
    assert logs["eval_per_class"] == [0.1, 0.2]
    assert (tmp_path / "checkpoint-1" / "trainer_state.json").is_file()
    parts = {"compute_metrics": lambda prediction: scores}
    trainer = toy_trainer(tmp_path, parts=parts, metric_for_best_model="per_class", **steps)
    with pytest.raises(TypeError, match=r"`eval_per_class` is a ndarray of shape \[2\], which cannot be compared"):
        trainer.train()


@pytest.mark.parametrize(
    ("collator", "match"),
    [
        ("pad", "It is a str; give one"),
        (transformers.DefaultDataCollator, "`data_collator` is the class DefaultDataCollator; give an instance"),
    ],
)
def test_collator_must_make_batches(collator, match, tmp_path):
    trainer = toy_trainer(tmp_path, parts={"data_collator": collator})
    with pytest.raises(TypeError, match=match):
        trainer.train()


class BatchOfPoints(dict):
    def __init__(self, given):
        super().__init__(given if isinstance(given, dict) else transformers.default_data_collator(given))


def test_class_of_batches_is_a_collator(tmp_path):
    assert toy_trainer(tmp_path, parts={"data_collator": BatchOfPoints}, max_steps=2).train().global_step == 2


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("log_level", "loud", "'debug', .*'passive'"),
        pytest.param(
            *("dataloader_multiprocessing_context", "thread", "'fork', 'spawn', 'forkserver'"),
            marks=since_transformers("5.15"),
        ),
    ],
)
def test_unknown_choice_is_rejected(name, value, allowed, tmp_path):
    refused(tmp_path, rf"`{name}='{value}'`; set it to one of .*{allowed}", **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("learning_rate", "2e-5", r"`learning_rate='2e-5'` is a string; set it to a number of 0 or more"),
        ("max_steps", "many", r"`max_steps='many'` is a string; set it to an integer"),
    ],
)
def test_string_instead_of_number_is_rejected(name, value, match, tmp_path):
    refuse = refused_in_training if name in READ_IN_TRAINING else refused
    refuse(tmp_path, match, TypeError, **{name: value})
    refuse(tmp_path, match, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("gradient_accumulation_steps", 0, "an integer of 1 or more"),
        ("per_device_train_batch_size", -1, "an integer of 1 or more"),
        ("learning_rate", float("nan"), "a number of 0 or more"),
        ("adam_beta1", float("nan"), "a number"),
        ("max_grad_norm", float("nan"), "a number"),
        ("num_train_epochs", -1, "a number of 0 or more"),
    ],
)
def test_number_out_of_range_is_rejected(name, value, allowed, tmp_path):
    refuse = refused_in_training if name in READ_IN_TRAINING else refused
    refuse(tmp_path, rf"`{name}={value!r}` cannot be used; set it to {allowed}", **{name: value})


@pytest.mark.parametrize(
    ("value", "call"),
    [
        ({"max_steps": 0.5}, "evaluate"),
        ({"max_steps": float("nan")}, "evaluate"),
        ({"per_device_train_batch_size": "2"}, "evaluate"),
        ({"neftune_noise_alpha": "x"}, "evaluate"),
        ({"gradient_accumulation_steps": 1.5}, "evaluate"),
        ({"include_for_metrics": 3}, "train"),
        ({"include_for_metrics": None}, "train"),
        ({"eval_accumulation_steps": 0}, "train"),
        ({"per_device_eval_batch_size": "2"}, "train"),
        ({"save_total_limit": "x", "save_strategy": "no"}, "train"),
        ({"eval_delay": "x"}, "train"),
        ({"train_sampling_strategy": "curriculum"}, "train"),
    ],
)
def test_arguments_are_judged_where_they_are_read(value, call, tmp_path, caplog):
    """A trainer that only trains, or only evaluates, takes what transformers takes of the other's arguments."""
    results = []
    for library in (transformers, portico):
        args = library.TrainingArguments(str(tmp_path), **QUIET | {"max_steps": 2} | value)
        trainer = library.Trainer(Line(), args, train_dataset=Points(6), eval_dataset=Points(4))
        getattr(trainer, call)()
        results.append({name: tensor.tolist() for name, tensor in trainer.model.state_dict().items()})
    assert results[0] == results[1]
    other = {"train": trainer.evaluate, "evaluate": trainer.train}[call]
    if value.keys() & {"train_sampling_strategy", "save_total_limit", "eval_delay"}:
        other()
        return
    with pytest.raises((portico.InputError, TypeError), match=f"`{next(iter(value))}="):
        other()


def test_order_that_does_not_exist_counts_as_random(tmp_path, caplog):
    toy_trainer(tmp_path, train_sampling_strategy="curriculum")
    assert "`train_sampling_strategy='curriculum'` is unknown and counts as 'random', as in transf" in caplog.text


def test_zero_epochs_with_max_steps(tmp_path):
    assert toy_trainer(tmp_path, num_train_epochs=-1, max_steps=1).train().global_step == 1


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"model": Line}, "`model` is the class Line; give an instance of it"),
        ({"callbacks": transformers.TrainerCallback()}, "`callbacks` is a TrainerCallback; give a list"),
        ({"callbacks": [print]}, "holds a builtin_function_or_method, which has no `on_init_end`"),
        ({"callbacks": [LightningCallback()]}, "this one in `lightning_callbacks`"),
        ({"lightning_callbacks": [transformers.TrainerCallback()]}, "those of `TrainerCallback` in `callbacks`"),
        ({"optimizers": torch.optim.SGD(Line().parameters())}, "`optimizers` is a SGD; give a tuple"),
        ({"model": "bert"}, r"`model` is 'bert', and not a model; load it, .*from_pretrained\('bert'\)"),
        ({"loggers": "wandb"}, r"`loggers` holds 'wandb'; give .*CSVLogger.*, or set .* `report_to='wandb'`"),
    ],
)
def test_part_of_wrong_type_is_rejected(parts, match, tmp_path):
    refused(tmp_path, match, TypeError, parts=parts)


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"optimizers": ("adam", None)}, r"`optimizers` is \(str, NoneType\); give a tuple"),
        (
            {"optimizers": (None, torch.optim.lr_scheduler.StepLR)},
            r"`optimizers` is \(NoneType, StepLR\); give a tuple",
        ),
        ({"optimizer_cls_and_kwargs": ("sgd", {})}, r"`optimizer_cls_and_kwargs` is a tuple; give a tuple of an"),
    ],
)
def test_optimizer_of_wrong_type_is_rejected_in_training(parts, match, tmp_path):
    refused_in_training(tmp_path, match, TypeError, parts=parts)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ("train.csv", r"a string, not data; load it.*load_dataset\('csv', data_files='train.csv'"),
        ("imdb", r"a string, not data; load it.*load_dataset\('imdb', split='train'\)"),
        ({"train": Points(2), "test": Points(2)}, r"a dict of train, test; .*dataset\['train'\]"),
        ({"x": [1, 2]}, r"the columns x; make a set of them with `datasets.Dataset.from_dict`"),
        (pandas.DataFrame({"x": [1]}), r"a DataFrame of pandas; convert it"),
        ((one for one in ()), "`train_dataset` is a generator, which can be read once"),
        (iter([{"x": 1}]), "`train_dataset` is a list_iterator, which can be read once"),
        ({1, 2}, "`train_dataset` is a set, which has no order; give a list of its examples"),
        (Points, "is the class Points; give a data set"),
    ],
)
def test_what_no_loader_can_read_is_rejected(data, match, tmp_path):
    trainer = toy_trainer(tmp_path, parts={"train_dataset": data}, max_steps=1)
    with pytest.raises(TypeError, match=match):
        trainer.train()


def test_processing_class_that_cannot_be_saved(tmp_path, caplog):
    match, parts = "`processing_class` is 'bert', which cannot be saved with the model", {"processing_class": "bert"}
    refused_in_training(tmp_path, match, TypeError, parts=parts, save_strategy="epoch")
    assert toy_trainer(tmp_path, parts=parts, max_steps=1).train().global_step == 1
    assert match in caplog.text


@pytest.mark.parametrize("name", ["compute_metrics", "preprocess_logits_for_metrics"])
def test_function_of_metrics_is_checked_where_an_evaluation_needs_it(name, tmp_path):
    match = f"`{name}` is a str, which cannot be called"
    parts = {"compute_metrics": lambda prediction: {}, name: "accuracy"}
    refused(tmp_path, match, TypeError, parts=parts, eval_strategy="epoch")
    trainer = toy_trainer(tmp_path, parts=parts, max_steps=1)
    trainer.train()
    with pytest.raises(TypeError, match=match):
        trainer.evaluate()


def test_evaluation_set_that_no_loader_can_read_is_rejected_where_it_is_read(tmp_path):
    sets, match = {"a": Points(2), "b": 3}, r"`eval_dataset\['b'\]` is the number 3; give a data set"
    refused(tmp_path, match, TypeError, parts={"eval_dataset": sets}, eval_strategy="steps")
    trainer = toy_trainer(tmp_path, parts={"eval_dataset": sets}, max_steps=1)
    trainer.train()
    with pytest.raises(TypeError, match="`eval_dataset` is the number 3"):
        trainer.evaluate()


def test_data_that_only_the_user_reads_may_be_anything(tmp_path):
    class OwnLoaders(portico.Trainer):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(next(iter(self.train_dataset.values())), batch_size=2)

        def get_eval_dataloader(self, eval_dataset=None):
            return torch.utils.data.DataLoader(Points(4), batch_size=2)

    parts = {"train_dataset": {"a": Points(4), "b": Points(6)}, "eval_dataset": "dev.csv"}
    trainer = toy_trainer(tmp_path, OwnLoaders, parts=parts, max_steps=1, eval_strategy="steps")
    trainer.train()
    assert "eval_loss" in trainer.evaluate()


class ByNumber(dict):
    """Rows by number, and their names as keys."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return Points(6)[index] if isinstance(index, int) else super().__getitem__(index)


class WithPositions(Points):
    iloc = columns = property(lambda self: self.x)


@pytest.mark.parametrize("data", [ByNumber(a=1), WithPositions(6), pandas.Series([Points(6)[i] for i in range(6)])])
def test_data_that_only_look_like_a_table_are_read(data, tmp_path):
    assert toy_trainer(tmp_path, parts={"train_dataset": data}, max_steps=2).train().global_step == 2


PARTS = [name for name in inspect.signature(portico.Trainer.__init__).parameters if name != "self"]
WRONG_VALUES = [3, 2.5, True, "text", ["text"], {"a": 1}]


@pytest.mark.parametrize("value", WRONG_VALUES, ids=str)
@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_every_wrong_kind_is_rejected_by_name(name, value, tmp_path):
    parts = {"compute_metrics": lambda prediction: {}} | ({"model": None} if name == "model_init" else {})
    name = {"tokenizer": "processing_class"}.get(name, name)
    steps = dict.fromkeys(("eval_strategy", "save_strategy"), "steps")
    with pytest.raises(portico.InputError, match=rf"`{name}[`=\[]"):
        toy_trainer(tmp_path, parts={**parts, name: value}, max_steps=1, **steps).train()


@pytest.mark.parametrize("value", [2.5, -3, "text", ["text"], {"a": 1}], ids=str)
@pytest.mark.parametrize("name", [*PLACEMENT, *PASSED_ON])
def test_every_argument_of_lightning_of_every_wrong_kind_is_rejected_by_name(name, value, tmp_path):
    given = {name: value} if name in PLACEMENT else {}
    further = {} if name in PLACEMENT else {"lightning_kwargs": {name: value}}
    shown = name.replace("predict", "(predict|test)")  # `predict` runs in Lightning's test loop
    refused(tmp_path, f"{shown}=", parts=further, **given)


# Arguments whose wrong kinds are wrong for this model or data set.
SAID_OTHERWISE = (
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "group_by_length",
    "label_smoothing_factor",
    "output_dir",
)
OWN_ARGUMENTS = {
    one.name: kind
    for kind in (portico.ORTTrainingArguments, portico.IPUTrainingArguments, portico.TrainingArguments)
    for one in dataclasses.fields(kind)
    if one.init and one.name not in {*SAID_OTHERWISE, *(old.name for old in dataclasses.fields(OlderArguments))}
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # in torch's own compiler
@pytest.mark.parametrize("name", OWN_ARGUMENTS)
def test_every_training_argument_of_every_wrong_kind_works_or_is_rejected_by_name(name, tmp_path):
    if OWN_ARGUMENTS[name] is portico.TrainingArguments:
        start = partial(toy_trainer, tmp_path, **{"max_steps": 1, "eval_strategy": "steps", "save_strategy": "steps"})
    else:
        start = partial(OWN_ARGUMENTS[name], tmp_path)
    messages = []
    for value in (2.5, -3, "text", ["text"], {"a": 1}, None, float("nan"), ""):
        try:
            made = start(**{name: value})
            if isinstance(made, portico.Trainer):
                made.train()
        except ValueError as error:
            messages.append(str(error))
    assert [message for message in messages if name not in message] == []


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("eval_strategy", "step", r"`eval_strategy='step'` cannot be used; set it to one of 'no', 'steps', 'epoch'\."),
        ("eval_strategy", False, r"`eval_strategy=False` cannot be used; set it to one of 'no', 'steps', 'epoch'\."),
        ("optim", torch.optim.AdamW, "`optim=<class .*AdamW'>` cannot be used; set it to one of 'adamw_torch', "),
        ("bf16", "False", r"`bf16='False'` is a string; set it to True or False"),
        (
            "per_device_eval_batch_size",
            2.5,
            r"`per_device_eval_batch_size=2.5` cannot be used; set it to an int",
        ),
        ("label_names", "labels", r"`label_names='labels'` is a string; set it to a list, or None"),
        ("metric_for_best_model", 3, r"`metric_for_best_model=3` cannot be used; set it to a string, or None"),
        ("seed", None, r"`seed=None` cannot be used; set it to an integer from 0 to 4294967295"),
        ("optim", None, r"`optim=None` cannot be used; set it to one of 'adamw_torch', "),
        ("save_steps", None, r"`save_steps=None` cannot be used; set it to a number"),
        ("accelerator_config", {"a": 1}, r"`accelerator_config` has no field a; it has split_batches"),
    ],
)
def test_wrong_kind_of_argument_is_rejected_where_it_is_read(name, value, match, tmp_path):
    if name in READ_IN_TRAINING:
        refused_in_training(tmp_path, match, **{name: value})
        return
    if name in READ_IN_EVALUATION:
        refused_in_evaluation(tmp_path, match, **{name: value})
        return
    with pytest.raises(portico.InputError, match=match):
        portico.TrainingArguments(str(tmp_path), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("save_only_model", None),
        ("learning_rate", None),
        ("max_steps", 3.0),
        ("bf16", "true"),
        ("fp16", 0),
        ("seed", np.int64(3)),
        ("run_name", 3),
        ("report_to", "none"),
    ],
)
def test_values_that_transformers_takes_freely_are_taken(name, value, tmp_path):
    assert getattr(portico.TrainingArguments(tmp_path, use_cpu=True, **{name: value}), name) in (value, [], [value])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"include_for_metrics": ["inputs"]}, r"the batch has no 'input_ids', only .*; set `main_input_name` in the"),
        ({"dataloader_persistent_workers": True}, r"`dataloader_num_workers=0` starts none; set"),
        ({"torch_compile": True, "torch_compile_mode": "fast"}, r"`torch_compile_mode='fast'`; set it to .*'default'"),
    ],
)
def test_arguments_that_need_another_are_rejected_by_name(arguments, match, tmp_path):
    with pytest.raises(portico.InputError, match=match):
        toy_trainer(tmp_path, max_steps=1, eval_strategy="steps", **arguments).train()


STEPS = {"eval_strategy": "steps"}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (
            {"logging_steps": 2.5},
            r"`logging_steps=2.5` cannot be used: --logging_steps must be an integer if bigger than 1: 2.5; "
            r"set it to another value, or leave it out \(the default is 500\)\.",
        ),
        ({"eval_steps": 2.5, **STEPS}, "`eval_steps=2.5` cannot be used: .*the default is None"),
        ({"torch_empty_cache_steps": -3}, "`torch_empty_cache_steps=-3` cannot be used: .*bigger than 0"),
        ({"debug": "text"}, r"`debug='text'` cannot be used: text is not a valid DebugOption.*'underflow_overflow'"),
        ({"lr_scheduler_kwargs": "{bad"}, "`lr_scheduler_kwargs='{bad'` cannot be used: Expecting property name"),
        ({"logging_steps": -3, **STEPS}, "`logging_steps=-3` and `eval_strategy='steps'` cannot be combined: "),
        (
            {"bf16_full_eval": True, "fp16_full_eval": True},
            "`bf16_full_eval=True` and `fp16_full_eval=True` cannot be combined: .*; set one of them to another",
        ),
    ],
)
def test_refusal_of_transformers_shows_the_arguments(arguments, match, tmp_path):
    with pytest.raises(portico.InputError, match=match):
        portico.TrainingArguments(tmp_path, use_cpu=True, **arguments)


@pytest.mark.parametrize(
    ("name", "value", "effect"),
    [
        ("label_smoothing_factor", 2, "rewards wrong labels"),
        ("max_grad_norm", -1, "gradients are not clipped"),
        ("eval_steps", -5, "counts as its absolute value"),
        ("save_total_limit", 0, "no checkpoint is deleted"),
        ("learning_rate", float("inf"), "weights become NaN"),
        ("greater_is_better", "yes!", "it counts as True"),
        ("prediction_loss_only", [], "it counts as False"),
    ],
)
def test_unusual_value_that_transformers_takes_is_warned_of(name, value, effect, tmp_path, caplog):
    toy_trainer(tmp_path, **{name: value})
    (warning,) = [record.getMessage() for record in caplog.records if f"`{name}=" in record.getMessage()]
    assert effect in warning


def test_error_of_a_script_that_mentions_no_argument_stays_as_it_is(tmp_path, monkeypatch):
    def check(self):
        raise ValueError("no licence")

    monkeypatch.setattr(portico.TrainingArguments, "_validate_args", check)
    with pytest.raises(ValueError, match=r"^no licence$") as raised:
        portico.TrainingArguments(tmp_path)
    assert type(raised.value) is ValueError


@pytest.mark.parametrize("name", ["gradient_accumulation_steps", "max_grad_norm", "weight_decay"])
def test_none_that_only_training_reads_is_rejected_in_training(name, tmp_path):
    trainer = toy_trainer(tmp_path, **{name: None})
    assert "eval_loss" in trainer.evaluate()
    with pytest.raises(portico.InputError, match=f"`{name}=None` cannot be used to train; set it to a"):
        trainer.train()


def test_output_folder_that_cannot_be_made_is_rejected(tmp_path):
    for value in (3, ["run"], {"run": 1}):
        with pytest.raises(portico.InputError, match=r"`output_dir=.* cannot be used; set it to a string"):
            portico.TrainingArguments(value)
    refused("", "`output_dir=''` names no folder; set it to one")
    (tmp_path / "file").write_text("")
    for folder, reason in ((tmp_path / "file", "File exists"), (tmp_path / "file" / "run", "Not a directory")):
        refused(folder, rf"`output_dir='{folder}'` cannot be made a folder \({reason}")


def test_model_without_trained_parameters_is_rejected(tmp_path):
    model = Line().requires_grad_(False)
    with pytest.raises(portico.InputError, match="Line has no parameter that is trained"):
        toy_trainer(tmp_path, parts={"model": model}).train()


def test_unknown_training_argument_names_what_was_meant(tmp_path):
    for name, meant in (("lr", "learning_rate"), ("epochs", "num_train_epochs"), ("warmup", "warmup_steps")):
        with pytest.raises(portico.InputError, match=f"has no argument `{name}`; did you mean `{meant}`") as refusal:
            portico.TrainingArguments(str(tmp_path), **{name: 1})
        assert isinstance(refusal.value, TypeError)


class PassesOn(portico.MRCTrainer):
    def __init__(self, *args, own=None, **kwargs):
        super().__init__(*args, **kwargs)


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        (portico.Trainer, "dataset", "`train_dataset` or `eval_dataset`"),
        (portico.Trainer, "lr", r"`args=TrainingArguments\(learning_rate=...\)`"),
        (portico.Trainer, "accelerator", r"`args=TrainingArguments\(accelerator=...\)`"),
        (portico.Trainer, "seed", r"`args=TrainingArguments\(seed=...\)`"),
        (portico.Seq2SeqTrainer, "metrics", "`compute_metrics`"),
        (portico.MRCTrainer, "post_process", "`post_process_function`"),
        (portico.ORTTrainer, "callback", "`callbacks`"),
        (portico.IPUTrainer, "config", "`ipu_config`"),
        (portico.GradientDescentTrainer, "epochs", "`num_epochs`"),
        (PassesOn, "own_", "`own`"),
    ],
)
def test_unknown_argument_of_a_trainer_names_what_was_meant(kind, name, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    match = f"`{kind.__name__}` has no argument `{name}`; did you mean {meant}"
    with pytest.raises(portico.InputError, match=match) as refusal:
        kind(model=Line(), **{name: 1})
    assert isinstance(refusal.value, TypeError)


def test_unreachable_hub_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    refused(tmp_path, "The repository `mine/run` cannot be made on the hub", push_to_hub=True, hub_model_id="mine/run")


def test_model_without_values_is_rejected(tmp_path):
    with torch.device("meta"):
        model = tiny_bert()
    with pytest.raises(ValueError, match=r"BertForSequenceClassification are on the meta .*; set `fsdp=True` in"):
        toy_trainer(tmp_path, parts={"model": model})


def test_folder_without_write_access_is_rejected_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(writer.os, "access", lambda folder, mode: False)
    trainer = toy_trainer(tmp_path, save_strategy="epoch")
    with pytest.raises(PermissionError) as raised:
        trainer.train()
    assert raised.value.filename == str(tmp_path)
    assert trainer.state.global_step == 0
    toy_trainer(tmp_path, max_steps=1).train()  # saves nothing


def test_compute_metrics_must_return_dict(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"compute_metrics": lambda prediction: 0.5})
    with pytest.raises(TypeError, match=r"`compute_metrics` returned '0.5' \(float\); let it return a dict"):
        trainer.evaluate()


def test_scheduler_kwargs_are_checked(tmp_path):
    trainer = toy_trainer(tmp_path, lr_scheduler_type="cosine", lr_scheduler_kwargs={"power": 2})
    with pytest.raises(TypeError, match=r"`lr_scheduler_type='cosine'` with .*{'power': 2}.*unexpected keyword"):
        trainer.train()
    trainer = toy_trainer(tmp_path, lr_scheduler_type="cosine_with_min_lr")
    with pytest.raises(portico.InputError, match="`lr_scheduler_kwargs=None` cannot be used: One of min_lr"):
        trainer.train()


def test_unknown_dataset_name_is_rejected(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"eval_dataset": {"easy": Points(2), "hard": Points(2)}})
    with pytest.raises(KeyError, match=r"`eval_dataset='esay'` names a set.*holds 'easy', 'hard'"):
        trainer.evaluate("esay")
    with pytest.raises(portico.InputError, match="holds none by name"):
        toy_trainer(tmp_path).evaluate("easy")


def test_predict_needs_dataset(tmp_path):
    with pytest.raises(TypeError, match="nothing to predict on"):
        toy_trainer(tmp_path).predict(None)


def test_batch_eval_metrics_needs_compute_result(tmp_path):
    parts = {"compute_metrics": lambda prediction: {}}
    refused(tmp_path, "must take a `compute_result` boolean", parts=parts, batch_eval_metrics=True)


@pytest.mark.parametrize(
    ("resume", "match"),
    [
        (True, "holds no complete `checkpoint-N`"),
        ("nowhere", "`resume_from_checkpoint=nowhere`"),
        ("True", "`resume_from_checkpoint='True'` is a string, .*let the script pass `True` without quotes"),
        (Points(2), r"`resume_from_checkpoint=<.*` is a Points; set it to a `checkpoint-N` folder"),
        (500, "`resume_from_checkpoint=500` is a int; set it to a `checkpoint-N` folder"),
    ],
)
def test_resume_from_missing_checkpoint_is_rejected(resume, match, tmp_path):
    with pytest.raises(portico.InputError, match=match):
        toy_trainer(tmp_path).train(resume_from_checkpoint=resume)


def test_folder_without_weights_is_rejected(tmp_path):
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3" / "trainer_state.json").write_text("{}")
    with pytest.raises(portico.InputError, match=r"valid checkpoint at .*checkpoint-3: it holds no model"):
        toy_trainer(tmp_path).train(resume_from_checkpoint=True)


def test_batch_without_inputs_is_rejected(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"train_dataset": UnknownColumn()})
    with pytest.raises(ValueError, match=r"batch received was empty.*by the model: x,labels"):
        trainer.train()
    everything = {"train_dataset": UnknownColumn(), "data_collator": lambda examples: {}}
    with pytest.raises(ValueError, match=r"batch received was empty.*by the model: x,labels"):
        toy_trainer(tmp_path, parts=everything, remove_unused_columns=False).train()


def test_model_that_returns_no_loss_is_rejected(tmp_path):
    class Silent(Line):
        def forward(self, x, labels=None):
            return {"logits": self.linear(x)}

    with pytest.raises(ValueError, match=r"the following keys: logits\. .* it received are x,labels\. Give it labels"):
        toy_trainer(tmp_path, parts={"model": Silent()}).train()


def test_loss_for_each_example_is_rejected(tmp_path):
    class Unreduced(Line):
        def forward(self, x, labels=None):
            return {"loss": (self.linear(x) - labels) ** 2}

    with pytest.raises(
        portico.InputError, match=r"`compute_loss` returned .* \(Tensor of shape \[2, 1\]\); let it re"
    ):
        toy_trainer(tmp_path, parts={"model": Unreduced()}).train()


def test_optimizer_of_another_model_is_said(tmp_path, caplog):
    for model in (trained := Line(), Line()):
        caplog.clear()
        toy_trainer(tmp_path, parts={"model": trained, "optimizers": (torch.optim.SGD(model.parameters()), None)})
        assert ("holds no parameter of the model" in caplog.text) is (model is not trained)


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"lr": 0.1, "momentu": 0.9}, "SGD cannot be made with lr=0.1, momentu=0.9: .*unexpected keyword.*'momentu'"),
        ({"lr": -1}, "SGD cannot be made with lr=-1: Invalid learning rate.*Correct `optimizer_cls_and_kwargs`"),
    ],
)
def test_arguments_that_the_optimizer_refuses_are_named(kwargs, match, tmp_path):
    trainer = toy_trainer(tmp_path, parts={"optimizer_cls_and_kwargs": (torch.optim.SGD, kwargs)})
    with pytest.raises(portico.InputError, match=match):
        trainer.train()


def test_an_evaluation_of_nothing_is_announced(tmp_path, caplog):
    trainer = toy_trainer(tmp_path, parts={"eval_dataset": {}}, eval_strategy="epoch")
    assert "`eval_dataset` is an empty dict, so an evaluation measures nothing; put sets into it" in caplog.text
    assert trainer.evaluate() == {}  # as under transformers


def test_what_is_no_callback_cannot_be_added(tmp_path):
    with pytest.raises(portico.InputError, match="holds a str, which has no `on_init_end`"):
        toy_trainer(tmp_path).add_callback("tensorboard")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"n_trials": 0}, "`n_trials=0` is not a number of trials; set it to an int >= 1"),
        ({"n_trials": "5"}, "`n_trials='5'` is not a number of trials"),
        ({"hp_space": {"learning_rate": [1]}}, "`hp_space` is a dict; give a function"),
        ({"compute_objective": "eval_loss"}, "`compute_objective` is a str; give a function"),
        ({"hp_name": "trial"}, "`hp_name` is a str; give a function"),
    ],
)
def test_wrong_arguments_of_a_search_are_rejected_by_name(options, match, tmp_path):
    trainer = toy_trainer(tmp_path, parts={"model": None, "model_init": Line, "eval_dataset": Points(4)})
    with pytest.raises(portico.InputError, match=match):
        trainer.hyperparameter_search(**options)


def test_optimizer_before_training_is_rejected(tmp_path):
    trainer = toy_trainer(tmp_path)
    for ask in (trainer.get_learning_rates, trainer.get_optimizer_group):
        with pytest.raises(ValueError, match="no optimizer yet"):
            ask()


def test_neftune_needs_embeddings(tmp_path):
    with pytest.raises(portico.InputError, match=r"`neftune_noise_alpha=5.0`.*Line has no `get_input_embeddings`"):
        toy_trainer(tmp_path, neftune_noise_alpha=5.0).train()


def test_activation_checkpointing_needs_support(tmp_path):
    with pytest.raises(portico.InputError, match="Line has no `activation_checkpointing_enable`"):
        toy_trainer(tmp_path, activation_checkpointing=True).train()


def test_diagnosis_of_tpus_has_no_effect(tmp_path, caplog):
    toy_trainer(tmp_path, debug="tpu_metrics_debug", max_steps=1).train()
    assert "`debug='tpu_metrics_debug'` has no effect: it is for TPUs" in caplog.text


def test_unknown_public_name_suggests_close_match():
    with pytest.raises(AttributeError, match=r"no attribute 'Trianer'; it has .*Trainer"):
        portico.Trianer  # noqa: B018


@pytest.mark.parametrize(("tracker", "reason"), [("nonsense", "is not supported"), ("comet_ml", "requires comet-ml")])
def test_unavailable_report_to_is_rejected(tmp_path, tracker, reason):
    refused(tmp_path, rf"`report_to={tracker}` cannot be used \(.*{reason}.*; install its package", report_to=tracker)


def test_method_with_nearly_the_name_of_a_hook_is_announced(tmp_path, caplog):
    class Misspelt(portico.Trainer):
        def compute_los(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs)

        def get_train_dataloaders(self):
            return [self.get_train_dataloader()]

        def all_loaders(self):
            return self.get_train_dataloaders()

    toy_trainer(tmp_path, Misspelt)
    told = [record.getMessage() for record in caplog.records if "is called by nothing" in record.getMessage()]
    assert told == [
        "`Misspelt.compute_los` is called by nothing here; if it is to override `compute_loss`, give it that name."
    ]


def test_accelerator_configuration_that_cannot_be_kept_or_read(tmp_path, monkeypatch):
    monkeypatch.setattr("portico.compat.accelerate._state", dict)
    with pytest.raises(portico.InputError, match="keeps the state of an `Accelerator` made before, but there is none"):
        toy_arguments(tmp_path, accelerator_config={"use_configured_state": True})
    with pytest.raises(FileNotFoundError, match="give a dict or a JSON file"):
        toy_arguments(tmp_path, accelerator_config=str(tmp_path / "missing.json"))


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("held_by", [list, tuple, CombinedLoader])
def test_several_loaders_are_refused_before_the_training(held_by, tmp_path):
    loaders = held_by([DataLoader(Points(), 2), DataLoader(Points(), 2)])
    match = rf"`eval_dataset` is a {held_by.__name__} of 2 loaders; give a dict of loaders by name"
    with pytest.raises(portico.InputError, match=match):
        toy_trainer(tmp_path, parts={"eval_dataset": loaders}, eval_strategy="epoch")
    with pytest.raises(portico.InputError, match=match):
        toy_trainer(tmp_path).evaluate(loaders)
    with pytest.raises(portico.InputError, match=r"`train_dataset` is a \w+ of 2 loaders; give one `DataLoader`"):
        toy_trainer(tmp_path, parts={"train_dataset": loaders}, max_steps=1).train()
