"""The trainings that end with the same numbers under both libraries, and what has to break each comparison."""

from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)
from transformers import (
    BatchEncoding,
    BertForTokenClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    TrainerCallback,
)
from transformers.modeling_outputs import SequenceClassifierOutput

import portico
from models import (
    Bag,
    Sequences,
    ToyDataset,
    ToyStream,
    pad_everything,
    tiny_bert,
    tiny_bert_config,
    tiny_gpt2,
    tiny_masked_lm,
    tiny_t5,
    tiny_tagger,
    tiny_tokenizer,
    two_layer_bert,
)
from parity import switches
from parity.peers import Outcome, run, untimed
from parity.switches import ignoring, ignoring_part
from portico.checkpoint.manifest import OWN_FILES


@dataclass(frozen=True)
class Scenario:
    """One training.

    Args:
        options: Options of :func:`parity.peers.run`.
        switches: Functions of :mod:`parity.switches`; under each of them the comparison has to fail.
        check: Further assertions, given the outcomes of portico and transformers and the folder above theirs.
        is_slow: Whether only ``-m slow`` runs the scenario.
    """

    options: dict[str, Any]
    switches: tuple[Callable[[Any], None], ...]
    check: Callable[[Outcome, Outcome, Path], None] | None = None
    is_slow: bool = False


SCENARIOS: dict[str, Scenario] = {}


def add(name: str, *switches: Any, check: Any = None, is_slow: bool = False, **options: Any) -> None:
    """Add a scenario."""
    assert name not in SCENARIOS, f"there are two scenarios {name!r}"
    assert switches, f"nothing shows that the comparison of {name!r} can fail"
    SCENARIOS[name] = Scenario(options, switches, check, is_slow)


EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}
EVALUATED_OFTEN = {"eval_strategy": "steps", "eval_steps": 1}
SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": 6}
BOTH = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
BEST = {**BOTH, "load_best_model_at_end": True}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def predicting(make_data=lambda: ToyDataset(10, seed=5)):
    """Return what to do after a training: predict, and compare everything that is returned."""

    def after(trainer):
        output = trainer.predict(make_data())
        return {
            "predictions": output.predictions,
            "labels": output.label_ids,
            "metrics": untimed(output.metrics),
            "dtype": str(next(trainer.model.parameters()).dtype),
        }

    return after


# ---- Arguments ----

add(
    "basic",
    switches.order_not_seeded,
    switches.same_order_each_epoch,
    switches.extra_iterator,
    switches.gradients_zeroed_late,
    switches.next_learning_rate_logged,
)
add("accumulation", switches.loss_divided_by_lightning, gradient_accumulation_steps=2)
add("partial_window", switches.labels_not_counted, gradient_accumulation_steps=3)
add("accumulation_four", switches.loss_divided_by_lightning, gradient_accumulation_steps=4)
add("accumulation_five", switches.labels_not_counted, gradient_accumulation_steps=5, logging_steps=2)
add("no_clipping", switches.no_norm_without_clipping, max_grad_norm=0.0)
add("tight_clipping", switches.clipping_by_groups, max_grad_norm=0.01)
add("weight_decay", switches.all_parameters_decayed, weight_decay=0.1, adam_beta2=0.95)
add("max_steps", ignoring("max_steps"), max_steps=5)
add("max_steps_over_epochs", ignoring("max_steps"), max_steps=11, gradient_accumulation_steps=3)
add("fractional_epochs", ignoring("num_train_epochs"), num_train_epochs=1.4, gradient_accumulation_steps=2)
add("drop_last", ignoring("dataloader_drop_last"), dataloader_drop_last=True)
add("cosine_with_warmup", switches.schedule_not_stepped, lr_scheduler_type="cosine", warmup_steps=4)
add("warmup_share", ignoring("warmup_steps"), warmup_steps=0.3)
add("adafactor", ignoring("optim"), optim="adafactor")
add("sgd", ignoring("optim"), optim="sgd")
add("data_seed", ignoring("data_seed"), data_seed=11)
add("group_by_length", ignoring("train_sampling_strategy"), train_sampling_strategy="group_by_length")
add("sequential", ignoring("train_sampling_strategy"), train_sampling_strategy="sequential")
add("eval_steps", switches.last_batch_left_whole, gradient_accumulation_steps=2, **EVALUATED)
add("eval_epoch", switches.last_batch_left_whole, gradient_accumulation_steps=3, eval_strategy="epoch")
add("eval_on_start", ignoring("eval_on_start"), eval_on_start=True, eval_strategy="epoch")
add("eval_delay", ignoring("eval_delay"), eval_delay=5, eval_strategy="steps", eval_steps=2)
add("eval_accumulation", switches.last_batch_left_whole, eval_accumulation_steps=2, eval_strategy="epoch")
add(
    "save_and_eval_mid_epoch",
    ignoring("save_strategy", "save_steps"),
    save_strategy="steps",
    save_steps=3,
    gradient_accumulation_steps=3,
    **EVALUATED,
)
add("best_model", switches.best_model_not_loaded, save_total_limit=1, **BEST)
add("save_best", ignoring("save_strategy"), eval_strategy="epoch", save_strategy="best", metric_for_best_model="loss")
add(
    "plateau",
    switches.plateau_not_stepped,
    eval_strategy="epoch",
    lr_scheduler_type="reduce_lr_on_plateau",
    lr_scheduler_kwargs={"patience": 0},
    num_train_epochs=4,
)
add("label_smoothing", ignoring("label_smoothing_factor"), label_smoothing_factor=0.1)
add("log_first_step", ignoring("logging_first_step"), logging_steps=5, logging_first_step=True)
add("log_epoch", ignoring("logging_strategy"), logging_strategy="epoch")
add("tokens_seen", ignoring("include_num_input_tokens_seen"), include_num_input_tokens_seen="all")
# Each worker has its own generator.
add(
    "workers",
    ignoring("dataloader_num_workers"),
    dataloader_num_workers=2,
    train_dataset=lambda: ToyDataset(draws=True),
)
add("gathered_objects", switches.order_not_seeded, eval_use_gather_object=True, after=predicting(), **EVALUATED)


def is_checkpointing(ours, theirs, folder):
    assert ours.trainer.model.is_activation_checkpointing


for _name, _kwargs in {"plain": None, "reentrant": {"use_reentrant": True}, "sparse": {"every_n_layers": 2}}.items():
    add(
        f"activation_checkpointing_{_name}",
        ignoring("activation_checkpointing"),
        activation_checkpointing=True,
        activation_checkpointing_kwargs=_kwargs,
        max_steps=3,
        check=is_checkpointing,
        **EVALUATED,
    )
add(
    "gradient_checkpointing",
    ignoring("gradient_checkpointing"),
    gradient_checkpointing=True,
    max_steps=3,
    check=is_checkpointing,
)


def noise_changes_the_loss_and_is_removed(ours, theirs, folder):
    plain = run(portico, folder / "plain", max_steps=3, **EVALUATED)
    assert ours.history[0]["loss"] != plain.history[0]["loss"]
    assert not ours.trainer.model.get_input_embeddings()._forward_hooks


add(
    "neftune",
    ignoring("neftune_noise_alpha"),
    neftune_noise_alpha=5.0,
    max_steps=3,
    check=noise_changes_the_loss_and_is_removed,
    **EVALUATED,
)


def files_are_the_same(ours, theirs, folder):
    files = [
        {str(path.relative_to(root)) for path in root.rglob("*") if path.name not in OWN_FILES}
        for root in (folder / "same", folder / "theirs")
    ]
    assert files[0] == files[1]
    best = [run.trainer.state.best_model_checkpoint for run in (ours, theirs)]
    assert len({checkpoint and Path(checkpoint).name for checkpoint in best}) == 1


add("weights_alone_saved", ignoring("save_only_model"), save_only_model=True, check=files_are_the_same, **SAVED)
add("two_checkpoints_kept", ignoring("save_total_limit"), save_total_limit=2, check=files_are_the_same, **SAVED)
add(
    "best_of_two_checkpoints_kept",
    ignoring("save_total_limit"),
    save_total_limit=2,
    load_best_model_at_end=True,
    learning_rate=0.5,
    check=files_are_the_same,
    **EVALUATED_OFTEN,
    **SAVED,
)

# ---- Precision and compilation ----


def matrix_loss(outputs, labels, num_items_in_batch=None):
    """A loss whose matrix product shows whether it is computed in half precision."""
    weights = torch.linspace(-1, 1, 9).view(3, 3)
    return nn.functional.cross_entropy(outputs.logits @ weights, labels, reduction="sum") / num_items_in_batch


def shared_layers():
    model = two_layer_bert()
    model.bert.encoder.layer[1] = model.bert.encoder.layer[0]
    return model


def evaluating_first(trainer_class):
    class EvaluatesFirst(trainer_class):
        def train(self, *args, **kwargs):
            self.evaluate()
            return super().train(*args, **kwargs)

    return EvaluatesFirst


def having_dtype(dtype):
    def check(ours, theirs, folder):
        assert {tensor.dtype for tensor in ours.weights.values() if tensor.is_floating_point()} == {dtype}

    return check


def predicting_in(dtype):
    def check(ours, theirs, folder):
        assert ours.extra["dtype"] == str(dtype)

    return check


add("bfloat16", ignoring("bf16"), bf16=True, gradient_accumulation_steps=3, after=predicting(), **EVALUATED)
add(
    "bfloat16_with_compute_loss_func",
    switches.order_not_seeded,
    bf16=True,
    max_steps=4,
    trainer_options={"compute_loss_func": matrix_loss},
    **EVALUATED,
)
add("bfloat16_with_reused_weights", switches.order_not_seeded, bf16=True, max_steps=4, make_model=shared_layers)
for _field, _dtype in {"bf16_full_eval": torch.bfloat16, "fp16_full_eval": torch.float16}.items():
    _options = {_field: True, "max_steps": 3, **EVALUATED}
    add(_field, switches.order_not_seeded, after=predicting(), check=predicting_in(_dtype), **_options)
add(
    "training_after_half_precision_evaluation",
    switches.order_not_seeded,
    base=evaluating_first,
    bf16_full_eval=True,
    max_steps=3,
    check=having_dtype(torch.bfloat16),
)


def without_dropout():
    model = tiny_bert()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


def saving(trainer):
    trainer.save_model()
    return {"compiled": trainer.model_wrapped is not trainer.model}


def compiled_and_saved_without_prefix(ours, theirs, folder):
    assert ours.extra["compiled"]
    assert not any(name.startswith("_orig_mod") for name in ours.weights)
    saved = safetensors.torch.load_file(folder / "same" / "model.safetensors")
    assert all(torch.equal(tensor, ours.weights[name]) for name, tensor in saved.items())


for _backend in ("eager", "aot_eager"):
    add(
        f"compiled_with_{_backend}",
        switches.order_not_seeded,
        torch_compile_backend=_backend,
        max_steps=3,
        after=saving,
        make_model=without_dropout,
        check=compiled_and_saved_without_prefix,
        **EVALUATED,
    )


def out_of_memory_beyond(num_examples):
    """Return a subclass that runs out of memory in the second step if a batch has more examples."""

    def base(trainer_class):
        class Small(trainer_class):
            def compute_loss(self, model, inputs, *args, **kwargs):
                if model.training and len(inputs["labels"]) > num_examples and self.state.global_step == 1:
                    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
                return super().compute_loss(model, inputs, *args, **kwargs)

        return Small

    return base


SHRINKING = {"auto_find_batch_size": True, "max_steps": 6, "per_device_train_batch_size": 4, **EVALUATED}


def halved_batches_once(ours, theirs, folder):
    assert ours.trainer.state.train_batch_size == ours.trainer._train_batch_size == 2
    assert [event[0] for event in ours.events].count("on_train_begin") == 3


add(
    "auto_find_batch_size",
    switches.order_not_seeded,
    base=out_of_memory_beyond(2),
    check=halved_batches_once,
    **SHRINKING,
)

# ---- Data ----


class Renamed(Dataset):
    """The toy sentences under other names."""

    def __init__(self, size, *names):
        self.data = ToyDataset(size)
        self.names = names

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return {name: self.data[index]["input_ids" if name == "input_ids" else "labels"] for name in self.names}


class Encoded(Renamed):
    """The toy sentences as a tokenizer returns them."""

    def __getitem__(self, index):
        return BatchEncoding({name: value.tolist() for name, value in super().__getitem__(index).items()})


class Sentences(Sequences):
    """One label for each sequence."""

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "label": index % 3}


def table(size=29, seed=0, **columns):
    data = ToyDataset(size, seed=seed)
    rows = {"input_ids": data.tokens.tolist(), "labels": data.labels.tolist(), "text": ["w"] * size, **columns}
    return datasets.Dataset.from_dict(rows)


def two_sets():
    return {"a": ToyDataset(7, seed=2), "b": ToyDataset(9, seed=3)}


add("dataset_that_draws", switches.no_look_ahead, train_dataset=lambda: ToyDataset(draws=True))
add(
    "dataset_that_draws_accumulated",
    switches.windows_batch_by_batch,
    train_dataset=lambda: ToyDataset(draws=True),
    eval_dataset=lambda: ToyDataset(11, draws=True),
    gradient_accumulation_steps=3,
    eval_strategy="steps",
    eval_steps=2,
)
add("stream", switches.feed_without_length, train_dataset=ToyStream, max_steps=6)
add("stream_gone_through", switches.feed_without_length, train_dataset=ToyStream, max_steps=19)
add("stream_that_draws", switches.no_look_ahead, train_dataset=lambda: ToyStream(draws=True), max_steps=6)
add(
    "stream_with_open_window",
    switches.open_window_stepped,
    train_dataset=ToyStream,
    max_steps=5,
    gradient_accumulation_steps=4,
)
add(
    "stream_for_evaluation",
    switches.last_batch_left_whole,
    eval_dataset=lambda: ToyStream(11),
    eval_strategy="epoch",
)
add("named_sets", switches.last_batch_left_whole, eval_dataset=two_sets, eval_strategy="epoch")
add(
    "named_sets_of_streams",
    switches.last_batch_left_whole,
    eval_dataset=lambda: {"a": ToyStream(7), "b": ToyStream(9, draws=True)},
    eval_strategy="steps",
    eval_steps=4,
    eval_on_start=True,
    trainer_options={"compute_metrics": accuracy},
)
add(
    "best_of_named_sets",
    switches.best_model_not_loaded,
    eval_dataset=two_sets,
    metric_for_best_model="b_loss",
    learning_rate=0.5,
    **BEST,
)
add(
    "random_masking_collator",
    switches.windows_batch_by_batch,
    make_model=tiny_masked_lm,
    train_dataset=lambda: Sequences(ragged=True, labelled=False),
    eval_dataset=lambda: Sequences(ragged=True, labelled=False),
    trainer_options=lambda model: {
        "data_collator": DataCollatorForLanguageModeling(tiny_tokenizer(), mlm_probability=0.3)
    },
    gradient_accumulation_steps=3,
    **EVALUATED,
)
SENTENCES = {
    "train_dataset": lambda: Sentences(ragged=True),
    "eval_dataset": lambda: Sentences(ragged=True, seed=1),
    **EVALUATED,
}
add(
    "padding_collator",
    switches.last_batch_left_whole,
    trainer_options=lambda model: {"data_collator": DataCollatorWithPadding(tiny_tokenizer())},
    **SENTENCES,
)
add(
    "processing_class",
    ignoring("train_sampling_strategy"),
    trainer_options=lambda model: {"processing_class": tiny_tokenizer()},
    train_sampling_strategy="group_by_length",
    include_num_input_tokens_seen="non_padding",
    **SENTENCES,
)
add(
    "column_of_lengths",
    ignoring("train_sampling_strategy"),
    train_dataset=lambda: table(length=[1 + index % 5 for index in range(29)]),
    eval_dataset=lambda: table(11, seed=1, length=[1 + index % 5 for index in range(11)]),
    train_sampling_strategy="group_by_length",
    **EVALUATED,
)


class Ragged(ToyDataset):
    """Token sequences of several lengths, which are also the labels."""

    def __getitem__(self, index):
        tokens = self.tokens[index][: 2 + index % 5].tolist()
        return {"input_ids": tokens, "labels": tokens}


REBALANCED = {
    "make_model": tiny_gpt2,
    "train_dataset": Ragged,
    "eval_dataset": Ragged,
    "trainer_options": {"data_collator": pad_everything},
    "train_sampling_strategy": "batch_rebalance",
}
_REBALANCED_WITH = {
    "alone": {},
    "drop_last": {"dataloader_drop_last": True},
    "two": {"gradient_accumulation_steps": 2},
}
for _name, _arguments in _REBALANCED_WITH.items():
    add(f"batch_rebalance_{_name}", switches.lengths_not_grouped, **REBALANCED, **_arguments)


def first_words(rows):
    return {"input_ids": [words[:3] for words in rows["input_ids"]], "labels": rows["labels"]}


def plain_model():
    return Bag(dropout=0.1)


def predictions(trainer):
    return predicting(lambda: trainer.eval_dataset)(trainer)


SHORT = {**EVALUATED, "gradient_accumulation_steps": 2, "max_steps": 5}
SETS = {
    "subset": lambda: Subset(ToyDataset(), range(3, 20)),
    "concatenation": lambda: ConcatDataset([ToyDataset(7), ToyDataset(8)]),
    "list": lambda: [ToyDataset()[index] for index in range(20)],
    "encodings": lambda: Encoded(20, "input_ids", "labels"),
    "label_column": lambda: Renamed(20, "input_ids", "label"),
    "table": table,
    "table_of_tensors": lambda: table().with_format("torch"),
    "table_of_arrays": lambda: table().with_format("numpy"),
    "table_with_transform": lambda: table().select_columns(["input_ids", "labels"]).with_transform(first_words),
    "iterable_table": lambda: table().to_iterable_dataset(),
    "shuffled_iterable_table": lambda: table().to_iterable_dataset(num_shards=3).shuffle(seed=1, buffer_size=7),
    "mapped_iterable_table": lambda: (
        table().to_iterable_dataset().map(lambda row: {"input_ids": row["input_ids"][::-1]})
    ),
}
for _name, _set in SETS.items():
    add(
        _name,
        switches.learning_rate_halved,
        make_model=Bag,
        after=predictions,
        train_dataset=_set,
        eval_dataset=_set,
        is_slow=True,
        **SHORT,
    )
add("empty_evaluation", switches.order_not_seeded, make_model=Bag, eval_dataset=lambda: ToyDataset(0), **SHORT)

# ---- Data loaders of a subclass ----


def collated_list(trainer):
    examples = [trainer.train_dataset[index] for index in range(13)]
    collate = torch.utils.data.default_collate
    return [collate(examples[start : start + 4]) for start in range(0, 13, 4)]


def generated_loader(trainer):
    generator = torch.Generator().manual_seed(4)
    return DataLoader(trainer.train_dataset, batch_size=4, shuffle=True, generator=generator)


def prepared_loader(trainer):
    batches = BatchSampler(RandomSampler(trainer.train_dataset), batch_size=3, drop_last=False)
    return trainer.accelerator.prepare(DataLoader(trainer.train_dataset, batch_sampler=batches))


def weighted_loader(trainer):
    weights = [1.0 + index % 3 for index in range(len(trainer.train_dataset))]
    return DataLoader(trainer.train_dataset, batch_size=4, sampler=WeightedRandomSampler(weights, len(weights)))


def loading_with(make_loader):
    return lambda trainer_class: type("Own", (trainer_class,), {"get_train_dataloader": make_loader})


_LOADERS = {
    collated_list: switches.labels_not_counted,
    generated_loader: switches.labels_not_counted,
    prepared_loader: switches.order_not_seeded,
    weighted_loader: switches.labels_not_counted,
}
for _loader, _switch in _LOADERS.items():
    add(_loader.__name__, _switch, base=loading_with(_loader), gradient_accumulation_steps=3)

# ---- Models ----

_IGNORED_LABELS = {
    "gpt2": (tiny_gpt2, Sequences, switches.last_batch_left_whole),
    "t5": (tiny_t5, Sequences, switches.last_batch_left_whole),
    "tagger": (tiny_tagger, lambda: Sequences(ragged=True, classes=3), switches.padded_with_zero),
}
for _name, (_model, _data, _switch) in _IGNORED_LABELS.items():
    for _steps, _broken_by in ((1, _switch), (3, switches.labels_not_counted)):
        add(
            f"ignored_labels_{_name}_{_steps}",
            _broken_by,
            make_model=_model,
            train_dataset=_data,
            eval_dataset=_data,
            trainer_options={"data_collator": pad_everything},
            gradient_accumulation_steps=_steps,
            after=predicting(_data),
            **EVALUATED,
        )
add(
    "causal_label_smoothing",
    switches.smoothing_not_shifted,
    make_model=tiny_gpt2,
    train_dataset=Sequences,
    eval_dataset=Sequences,
    trainer_options={"data_collator": pad_everything},
    label_smoothing_factor=0.1,
    gradient_accumulation_steps=2,
    **EVALUATED,
)
add("plain_module", switches.partial_windows_counted_as_full, make_model=plain_model, gradient_accumulation_steps=3)

Named = namedtuple("Named", "loss logits")
RETURNS = {
    "tuple": lambda loss, logits: (loss, logits),
    "list": lambda loss, logits: [loss, logits],
    "namedtuple": Named,
    "ordered_dict": lambda loss, logits: OrderedDict(loss=loss, logits=logits, doubled=logits * 2),
    "model_output": lambda loss, logits: SequenceClassifierOutput(loss=loss, logits=logits),
    "nested": lambda loss, logits: (loss, (logits, logits[:, :2]), logits),
    "scalar": lambda loss, logits: {"loss": loss, "logits": logits, "scale": logits.mean()},
    "bfloat16": lambda loss, logits: {"loss": loss, "logits": logits.bfloat16()},
    "loss_alone": lambda loss, logits: (loss,),
}


class Returning(Bag):
    """A model that returns its outputs in one of the forms of ``RETURNS``."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, input_ids, labels=None):
        return RETURNS[self.form](**super().forward(input_ids, labels))


class Targeted(Bag):
    """A model whose labels have another name."""

    def forward(self, input_ids, targets):
        return super().forward(input_ids, targets)


class Inside(nn.Module):
    """A model in a part called ``module``, as wrappers for several devices have it, but with its own ``forward``."""

    def __init__(self):
        super().__init__()
        self.module = tiny_bert()

    def forward(self, **inputs):
        return self.module(**inputs)


def frozen():
    model = tiny_bert()
    model.bert.requires_grad_(False)
    return model


def without_config():
    model = Bag()
    model.config = None
    return model


def saved_weights(trainer):
    trainer.save_model()
    return {**predictions(trainer), "weights": (Path(trainer.args.output_dir) / "model.safetensors").read_bytes()}


for _form in RETURNS:
    add(
        f"model_that_returns_{_form}",
        switches.order_not_seeded,
        make_model=lambda form=_form: Returning(form),
        after=predictions,
        **SHORT,
    )
for _name, _names in {"named": ["targets"], "unnamed": None}.items():
    add(
        f"renamed_labels_{_name}",
        switches.order_not_seeded,
        make_model=Targeted,
        after=predictions,
        label_names=_names,
        train_dataset=lambda: Renamed(29, "input_ids", "targets"),
        eval_dataset=lambda: Renamed(9, "input_ids", "targets"),
        **SHORT,
    )
for _name, _model in {"wrapped": Inside, "data_parallel": lambda: nn.DataParallel(tiny_bert())}.items():
    add(
        f"{_name}_model",
        switches.order_not_seeded,
        make_model=_model,
        after=saved_weights,
        remove_unused_columns=False,
        **SHORT,
    )
for _name, _model in {"frozen": frozen, "double": lambda: Bag().double(), "unconfigured": without_config}.items():
    add(
        f"{_name}_model",
        switches.order_not_seeded,
        make_model=_model,
        after=predictions,
        save_strategy="steps",
        save_steps=2,
        **SHORT,
    )

# ---- Callbacks ----


class StopEpoch(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step in (2, 3)


class StopTrainingInSubstep(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= 2


class ForceEverything(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = control.should_save = control.should_log = state.global_step % 3 == 1


class ChangeAccumulation(TrainerCallback):
    def on_epoch_begin(self, args, state, control, **kwargs):
        args.gradient_accumulation_steps = 2 if state.epoch < 1 else 5

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            args.gradient_accumulation_steps = 1


_STEERING = {
    ChangeAccumulation: switches.accumulation_not_followed,
    StopEpoch: switches.epoch_not_stopped,
    StopTrainingInSubstep: switches.training_not_stopped,
    ForceEverything: switches.nothing_between_steps,
}
for _callback, _switch in _STEERING.items():
    add(_callback.__name__, _switch, callbacks=[_callback], gradient_accumulation_steps=3, logging_steps=100)
add(
    "early_stopping",
    switches.training_not_stopped,
    callbacks=[lambda: EarlyStoppingCallback(1)],
    metric_for_best_model="loss",
    num_train_epochs=4,
    **EVALUATED_OFTEN,
)


class Evaluating(TrainerCallback):
    """Evaluates and predicts at one event, as it is called by :func:`introduced`."""

    trainer = None

    def evaluate(self, args, state, control, **kwargs):
        self.trainer.evaluate()
        self.trainer.predict(ToyDataset(5, seed=9))


def introduced(trainer_class):
    class Introduced(trainer_class):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            for callback in self.callback_handler.callbacks:
                if isinstance(callback, Evaluating):
                    callback.trainer = self

    return Introduced


for _event in ("on_epoch_begin", "on_step_begin", "on_step_end", "on_epoch_end", "on_train_end"):
    add(
        f"evaluation_{_event}",
        switches.training_mode_restored,
        callbacks=[type("EvaluateAt", (Evaluating,), {_event: Evaluating.evaluate})],
        base=introduced,
        gradient_accumulation_steps=2,
    )


class NewOptimizer(Evaluating):
    """Replaces optimizer and schedule in the second step."""

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.trainer.optimizer = torch.optim.SGD(self.trainer.model.parameters(), lr=0.05)
            self.trainer.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(self.trainer.optimizer, 0.9)


add(
    "replaced_optimizer",
    switches.replaced_optimizer_ignored,
    switches.replaced_schedule_ignored,
    callbacks=[NewOptimizer],
    base=introduced,
    num_train_epochs=1,
)


class NewModel(Evaluating):
    """Replaces the model in the second step; the run trains the old one on, and evaluates and saves the new one."""

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.trainer.model = self.trainer.model_wrapped = tiny_bert()


add(
    "replaced_model",
    switches.replaced_model_trained,
    callbacks=[NewModel],
    base=introduced,
    eval_strategy="steps",
    eval_steps=2,
    save_strategy="epoch",
)

# ---- Subclasses of the trainer ----


def overriding_compute_loss(trainer_class):
    class Doubled(trainer_class):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            loss = outputs["loss"] * 2
            return (loss, outputs) if return_outputs else loss

    return Doubled


def overriding_training_step(trainer_class):
    class Whole(trainer_class):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            loss = loss / self.current_gradient_accumulation_steps
            self.accelerator.backward(loss)
            return loss.detach()

    return Whole


def calling_super(trainer_class):
    class Super(trainer_class):
        def training_step(self, *args, **kwargs):
            return super().training_step(*args, **kwargs)

    return Super


def raw_backward(trainer_class):
    class Raw(trainer_class):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            loss = self.compute_loss(model, inputs) / self.current_gradient_accumulation_steps
            loss.backward()
            return loss.detach()

    return Raw


def adversarial(trainer_class):
    class Adversarial(trainer_class):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = super().training_step(model, inputs, num_items_in_batch)
            # Several processes train a wrapped model.
            weight = getattr(model, "module", model).bert.embeddings.word_embeddings.weight
            nudge = 0.1 * weight.grad / (weight.grad.norm() + 1e-8)
            weight.data.add_(nudge)
            super().training_step(model, inputs, num_items_in_batch)
            weight.data.sub_(nudge)
            return loss

    return Adversarial


def many_small(trainer_class):
    class Many(trainer_class):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_size=5, shuffle=True)

        def create_optimizer(self, *args, **kwargs):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
            return self.lr_scheduler

        def log(self, logs, *args, **kwargs):
            logs["mine"] = len(self.state.log_history)
            super().log(logs, *args, **kwargs)

        def evaluate(self, *args, **kwargs):
            self.model.evaluations = getattr(self.model, "evaluations", 0) + 1
            metrics = super().evaluate(*args, **kwargs)
            self.log({"evaluations": self.model.evaluations})
            return metrics

        def prediction_step(self, *args, **kwargs):
            loss, logits, labels = super().prediction_step(*args, **kwargs)
            return (loss * 3 if loss is not None else None), logits, labels

    return Many


def own_evaluation_loop(trainer_class):
    class Own(trainer_class):
        def evaluation_loop(self, dataloader, description, *args, metric_key_prefix="eval", **kwargs):
            output = super().evaluation_loop(dataloader, description, *args, metric_key_prefix=metric_key_prefix)
            output.metrics[f"{metric_key_prefix}_extra"] = 1.5
            return output

    return Own


_SUBCLASSES = {
    overriding_compute_loss: ignoring("base"),
    overriding_training_step: switches.partial_windows_counted_as_full,
    calling_super: switches.labels_not_counted,
    raw_backward: switches.backward_deferred,
    adversarial: switches.backward_deferred,
    many_small: ignoring("base"),
    own_evaluation_loop: ignoring("base"),
}
for _subclass, _switch in _SUBCLASSES.items():
    add(_subclass.__name__, _switch, base=_subclass, gradient_accumulation_steps=3, **EVALUATED)


def losing_a_loss(trainer_class):
    class Breaks(trainer_class):
        def compute_loss(self, *args, **kwargs):
            loss = super().compute_loss(*args, **kwargs)
            return loss * float("nan") if self.state.global_step == 4 else loss

    return Breaks


def logs_no_nan(ours, theirs, folder):
    assert all(entry["loss"] == entry["loss"] for entry in ours.history if "loss" in entry)


add(
    "nonfinite_loss",
    switches.infinite_losses_summed,
    base=losing_a_loss,
    max_steps=4,
    logging_steps=2,
    check=logs_no_nan,
)


def remade_model(trainer_class):
    class Remade(trainer_class):
        def __init__(self, model, **kwargs):
            super().__init__(model_init=tiny_bert, **kwargs)

    return Remade


def second_run(trainer):
    return {"loss": trainer.train().training_loss, "weights": dict(trainer.model.state_dict())}


add("second_run", switches.same_order_each_epoch, after=second_run)
add("model_init", switches.model_kept, base=remade_model, after=second_run)

# ---- Parts of the trainer ----


def summed(outputs, labels, num_items_in_batch=None):
    return nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def adam_and_schedule(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return {"optimizers": (optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9))}


add(
    "compute_loss_func",
    switches.losses_divided_twice,
    trainer_options={"compute_loss_func": summed},
    gradient_accumulation_steps=3,
)
add("given_optimizers", ignoring_part("optimizers"), trainer_options=adam_and_schedule, **EVALUATED)
add(
    "optimizer_cls_and_kwargs",
    ignoring_part("optimizer_cls_and_kwargs"),
    trainer_options={"optimizer_cls_and_kwargs": (torch.optim.RMSprop, {"lr": 1e-3})},
    weight_decay=0.1,
)

# ---- Metrics and predictions ----


class Unlabelled(Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"input_ids": ToyDataset(7, seed=5).tokens[index]}


def described(prediction):
    return {
        "losses": float(prediction.losses.sum()),
        "inputs": float(prediction.inputs.sum()),
        "logits": float(prediction.predictions.sum()),
        "rows": len(prediction.label_ids),
    }


def logs_the_inputs(ours, theirs, folder):
    assert any("eval_inputs" in entry for entry in ours.history)


class StreamedAccuracy:
    """A metric with a state over the batches of an evaluation, for ``batch_eval_metrics``."""

    def __init__(self):
        self.right = 0
        self.seen = 0

    def __call__(self, prediction, compute_result=False):
        self.right += int((prediction.predictions.argmax(-1) == prediction.label_ids).sum())
        self.seen += len(prediction.label_ids)
        if not compute_result:
            return {}
        result = {"accuracy": self.right / self.seen, "seen": self.seen}
        self.__init__()
        return result


def counts_each_example_once(ours, theirs, folder):
    assert ours.history[-2]["eval_seen"] == 11


def shapes(prediction):
    return {"shapes": str([batch.shape for batch in prediction.predictions])}


def sees_three_batches(ours, theirs, folder):
    assert {entry["eval_shapes"].count("(") for entry in ours.history if "eval_shapes" in entry} == {3}


def predicting_first(trainer_class):
    class PredictsFirst(trainer_class):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.first = predicting()(self)
            self.metrics = untimed(self.evaluate())

    return PredictsFirst


def first_predictions(trainer):
    return {"first": trainer.first, "metrics": trainer.metrics}


def classes(logits, labels):
    return logits.argmax(-1) + labels


def mean(prediction):
    return {"mean": float(prediction.predictions.mean())}


class TwoTargets(Bag):
    """A model with two label arguments."""

    def forward(self, input_ids, first=None, second=None):
        logits = self.logits(input_ids)
        if first is None:
            return {"logits": logits}
        cross_entropy = nn.functional.cross_entropy
        return {"loss": cross_entropy(logits, first) + cross_entropy(logits, second), "logits": logits}


class TwoLabels(ToyDataset):
    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "first": self.labels[index], "second": (self.labels[index] + 1) % 3}


def talkative_tagger():
    config = tiny_bert_config(2)
    config.output_hidden_states = True
    torch.manual_seed(7)
    return BertForTokenClassification(config)


def returning_labels(count):
    """Return a check of the number of columns of labels that a prediction returns."""

    def check(ours, theirs, folder):
        labels = ours.extra["labels"]
        assert (0 if labels is None else len(labels) if isinstance(labels, tuple) else 1) == count

    return check


def returns_three_hidden_states(ours, theirs, folder):
    assert len(ours.extra["predictions"][1]) == 3


add("metrics", switches.names_without_prefix, trainer_options={"compute_metrics": accuracy}, eval_strategy="epoch")
add(
    "predictions_after_training",
    switches.dropout_left_on,
    trainer_options={"compute_metrics": accuracy},
    after=lambda trainer: {"evaluated": untimed(trainer.evaluate()), **predicting()(trainer)},
)
add(
    "metrics_of_inputs_and_losses",
    switches.last_batch_left_whole,
    trainer_options={"compute_metrics": described},
    include_for_metrics=["inputs", "loss"],
    check=logs_the_inputs,
    **EVALUATED,
)
add(
    "metrics_of_batches",
    switches.no_look_ahead,
    trainer_options=lambda model: {"compute_metrics": StreamedAccuracy()},
    batch_eval_metrics=True,
    after=predicting(),
    check=counts_each_example_once,
    **EVALUATED,
)
add(
    "lists_without_concatenation",
    ignoring("eval_do_concat_batches"),
    trainer_options={"compute_metrics": shapes},
    eval_do_concat_batches=False,
    after=predicting(),
    check=sees_three_batches,
    **EVALUATED,
)
add(
    "predictions_without_labels",
    switches.dropout_left_on,
    after=predicting(Unlabelled),
    max_steps=2,
    check=returning_labels(0),
)
add(
    "predictions_before_training",
    switches.dropout_left_on,
    base=predicting_first,
    after=first_predictions,
    max_steps=2,
)
add(
    "preprocessed_logits",
    ignoring_part("preprocess_logits_for_metrics"),
    trainer_options={"preprocess_logits_for_metrics": classes, "compute_metrics": mean},
    **EVALUATED,
)
add(
    "label_names",
    switches.learning_rate_halved,
    make_model=TwoTargets,
    train_dataset=TwoLabels,
    eval_dataset=TwoLabels,
    label_names=["first", "second"],
    after=predicting(lambda: TwoLabels(10, seed=5)),
    check=returning_labels(2),
    **EVALUATED,
)
add("predictions_of_stream", switches.last_batch_left_whole, after=predicting(lambda: ToyStream(10)), max_steps=2)
for _every in (None, 2):
    add(
        f"nested_predictions_of_varying_width_{_every}",
        switches.padded_with_zero,
        make_model=talkative_tagger,
        train_dataset=lambda: Sequences(ragged=True, classes=3),
        trainer_options={"data_collator": pad_everything},
        eval_accumulation_steps=_every,
        max_steps=2,
        after=predicting(lambda: Sequences(ragged=True, classes=3, seed=5)),
        check=returns_three_hidden_states,
    )
METRICS = {
    "numpy": {"a": np.float32(1.5), "b": np.array(2.5), "c": np.int64(3)},
    "tensor": {"a": torch.tensor(1.5)},
    "text": {"a": "text", "b": None},
    "nested": {"a": {"x": np.float32(1)}, "b": [np.float32(1), 2]},
    "prefixed": {"eval_a": 1.0},
}
for _name, _metrics in METRICS.items():
    add(
        f"metrics_that_are_{_name}",
        switches.order_not_seeded,
        make_model=Bag,
        trainer_options={"compute_metrics": lambda prediction, metrics=_metrics: dict(metrics)},
        is_slow=True,
        **SHORT,
    )
