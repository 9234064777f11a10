"""Each deviation of transformers in one process: its warning, and the numbers with and without the correction."""

import json
import logging
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

import portico
from models import (
    Bag,
    Line,
    Pairs,
    Points,
    PointStream,
    Sequences,
    ToyDataset,
    pad_everything,
    tiny_bert,
    tiny_gpt2,
    tiny_t5,
    tiny_tokenizer,
    toy_arguments,
    toy_trainer,
)
from parity.curves import WithColumns, span
from portico.arguments import CORRECTIONS, correction_names
from portico.data.loaders import DataLoaderConfig, prepare_data_loader, skip_first_batches
from portico.errors import InputError
from portico.loop.corrections import WatchedCount, count_repeats, resize_rows
from releases import since_torch

DOCS = Path(__file__).parents[3] / "docs" / "corrections.md"


@pytest.fixture
def warnings_of(caplog):
    """Return the warnings about deviations so far."""
    caplog.set_level(logging.WARNING)
    return lambda: [line for record in caplog.records if "corrections=[" in (line := record.getMessage())]


def logged(trainer, key="loss"):
    return [entry[key] for entry in trainer.state.log_history if key in entry]


def bert_trainer(folder, trainer_class=None, parts=None, **changes):
    options = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 4, "max_steps": 2, **changes}
    parts = {"model": tiny_bert(), "train_dataset": ToyDataset(), "eval_dataset": None, **(parts or {})}
    return toy_trainer(folder, trainer_class, parts, **options)


# Names


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (None, []),
        ([], []),
        ("nan_losses, loss_scale", ["loss_scale", "nan_losses"]),
        (["nan_losses"], ["nan_losses"]),
        ("all", list(CORRECTIONS)),
        (["all"], list(CORRECTIONS)),
    ],
)
def test_corrections_are_named(value, names, tmp_path):
    assert correction_names(value) == names
    assert toy_arguments(tmp_path, corrections=value).corrections == names


def test_unknown_correction_is_refused_with_the_nearest(tmp_path):
    with pytest.raises(
        InputError, match=r"'loss_scal' in `corrections`; the nearest is 'loss_scale', and all are"
    ) as told:
        toy_arguments(tmp_path, corrections=["loss_scal"])
    assert all(repr(name) in str(told.value) for name in CORRECTIONS)


def test_command_line_takes_names_with_commas(tmp_path):
    parser = transformers.HfArgumentParser(portico.TrainingArguments)
    options = ["--output_dir", str(tmp_path), "--corrections", "loss_scale,nan_losses", "--stop_on_nan"]
    (args,) = parser.parse_args_into_dataclasses(options)
    assert (args.corrections, args.stop_on_nan) == (["loss_scale", "nan_losses"], True)
    assert json.loads(args.to_json_string())["corrections"] == ["loss_scale", "nan_losses"]


def test_arguments_of_transformers_correct_nothing(tmp_path):
    trainer = toy_trainer(tmp_path, parts={"args": toy_arguments(tmp_path, transformers.TrainingArguments)})
    assert not any(name in trainer.corrections for name in CORRECTIONS)


def test_saved_arguments_are_those_of_transformers(tmp_path):
    trainer = toy_trainer(tmp_path, corrections="all", stop_on_nan=True)
    trainer.save_model()
    saved = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert type(saved) is transformers.TrainingArguments
    assert not {"corrections", "stop_on_nan"} & vars(saved).keys()


def test_every_correction_has_a_row_and_every_row_a_correction():
    rows = re.findall(r"^\| `(\w+)` \|", DOCS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert rows == list(CORRECTIONS)


# Losses that transformers adds up


class WeightedLoss(portico.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs["logits"], inputs["labels"], weight=torch.tensor([1.0, 2.0, 1.0]))
        return (loss, outputs) if return_outputs else loss


def mean_loss(outputs, labels, num_items_in_batch=None):
    return nn.functional.cross_entropy(outputs["logits"], labels)


def span_loss(outputs, labels, num_items_in_batch=None):
    return outputs["logits"].square().mean()


@pytest.mark.parametrize(
    ("name", "trainer_class", "parts"),
    [
        ("BertForSequenceClassification", None, {}),
        ("WeightedLoss", WeightedLoss, {}),
        ("mean_loss", None, {"compute_loss_func": mean_loss}),
        # Without `labels` in the batch there is no count at all.
        ("span_loss", None, {"compute_loss_func": span_loss, "train_dataset": WithColumns(span, 24)}),
    ],
)
def test_mean_that_is_added_up_warns_once(name, trainer_class, parts, tmp_path, warnings_of):
    trainer = bert_trainer(tmp_path, trainer_class, parts)
    trainer.train()
    trainer.train()
    assert warnings_of() == [
        f"The loss of `{name}` is a mean already, yet transformers adds it up over 4 batches: the logged loss and its "
        "gradients are 4 times too large; set `corrections=['loss_scale']`."
    ]


def test_a_script_under_portico_run_is_told_the_option(tmp_path, warnings_of, monkeypatch):
    monkeypatch.setenv("PORTICO_RUN", "{}")
    bert_trainer(tmp_path, portico.Trainer, {"compute_loss_func": mean_loss}).train()
    (warning,) = warnings_of()
    assert warning.endswith("set `corrections=['loss_scale']`, or give `--corrections loss_scale` to `portico run`.")


def sum_over_count(outputs, labels, num_items_in_batch):
    return nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def sum_over_number(outputs, labels, num_items_in_batch):
    return nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / int(num_items_in_batch.item())


@torch.compile(backend="eager")
def compiled_loss(outputs, labels, num_items_in_batch):
    return sum_over_count(outputs, labels, num_items_in_batch)


@pytest.mark.parametrize(
    "parts", [{"compute_loss_func": sum_over_count}, {"compute_loss_func": sum_over_number}, {"model": tiny_gpt2}]
)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_that_uses_the_count_does_not_warn(parts, smoothing, tmp_path, warnings_of):
    if "model" in parts:
        parts = {"model": tiny_gpt2(), "train_dataset": Sequences(24), "data_collator": pad_everything}
    trainer = bert_trainer(tmp_path, None, parts, label_smoothing_factor=smoothing)
    trainer.train()
    assert warnings_of() == []


def test_nothing_warns_without_accumulation_or_with_the_correction(tmp_path, warnings_of):
    bert_trainer(tmp_path, gradient_accumulation_steps=1).train()
    bert_trainer(tmp_path, corrections="loss_scale").train()
    assert warnings_of() == []


def test_count_is_watched_without_a_trace_in_the_numbers():
    count, loss = torch.tensor(7.0), torch.tensor(3.0)
    watched = count.as_subclass(WatchedCount)
    watched.uses = []
    moved = (watched.to("cpu") / 2).unsqueeze(0)
    assert watched.uses == []
    assert (watched.device, watched.dim(), str(moved.dtype)) == (count.device, 0, "torch.float32")
    quotient = loss / moved
    assert type(quotient) is torch.Tensor
    assert torch.equal(quotient, loss / (count / 2).unsqueeze(0))
    assert watched.uses


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@since_torch("2.13")
def test_compiled_loss_is_not_judged(tmp_path, warnings_of):
    bert_trainer(tmp_path, None, {"compute_loss_func": compiled_loss}).train()
    WatchedCount.traced.clear()
    assert warnings_of() == []


def test_overridden_training_step_receives_the_count_of_the_window(tmp_path):
    class Own(portico.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            counts.append(int(num_items_in_batch))
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            self.accelerator.backward(loss)
            return loss.detach()

    counts = []
    bert_trainer(tmp_path, Own, corrections="all").train()
    assert set(counts) == {12}


class Balanced(Bag):
    """A sum over the count of labels, and next to it a mean, as the routing loss of a mixture of experts."""

    def forward(self, input_ids, labels=None, num_items_in_batch=None, **kwargs):
        logits = self.logits(input_ids)
        reduction = "mean" if num_items_in_batch is None else "sum"
        loss = nn.functional.cross_entropy(logits, labels, reduction=reduction)
        loss = loss if num_items_in_batch is None else loss / num_items_in_batch
        return {"loss": loss + logits.square().mean(), "logits": logits}


def test_loss_that_uses_the_count_in_part_is_a_mean_too(tmp_path):
    def losses(num_batches, **changes):
        sizes = {"per_device_train_batch_size": 12 // num_batches, "gradient_accumulation_steps": num_batches}
        trainer = bert_trainer(tmp_path, None, {"model": Balanced()}, **{**sizes, **changes, "max_steps": 3})
        trainer.train()
        return logged(trainer)

    right = losses(1)
    assert losses(4)[0] > 1.01 * right[0]
    assert losses(4, corrections="loss_scale") == pytest.approx(right, rel=1e-5)


def test_short_batch_in_a_window_warns(tmp_path, warnings_of):
    parts = {"train_dataset": Points(7), "eval_dataset": None}
    sizes = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3, "num_train_epochs": 1}
    toy_trainer(tmp_path, parts=parts, **sizes).train()
    (warning,) = warnings_of()
    assert "batches of 1 and of 3 examples the same weight, so an example of the smaller one counts 3 times" in warning
    corrected = toy_trainer(tmp_path, parts={**parts, "model": Line()}, corrections="loss_scale", **sizes)
    corrected.train()
    model, data = Line(), Points(7)
    assert logged(corrected) == pytest.approx([model(data.x, data.y)["loss"].item()], rel=1e-5)


def test_batch_without_labels_weighs_nothing(tmp_path):
    data = [
        {"input_ids": torch.tensor([row + 1]), "labels": torch.tensor([-100, 1, -100, 2][row])} for row in range(4)
    ]
    found = []
    for size in (4, 2, 1):
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": 4 // size, "max_steps": 2}
        trainer = bert_trainer(tmp_path, None, {"model": Bag(), "train_dataset": data}, corrections="all", **sizes)
        trainer.train()
        found.append(logged(trainer) + logged(trainer, "grad_norm"))
    assert found == [pytest.approx(found[0], rel=1e-5)] * 3


# Streams


def test_end_of_a_stream_makes_a_step(tmp_path, warnings_of):
    def run(size, num_batches, **changes):
        parts = {"train_dataset": PointStream(), "eval_dataset": None}
        sizes = {"per_device_train_batch_size": size, "gradient_accumulation_steps": num_batches, "max_steps": 5}
        trainer = toy_trainer(tmp_path, parts=parts, **sizes, **changes)
        trainer.train()
        return logged(trainer), logged(trainer, "grad_norm")

    # 10 points: a window of 8, and 2 that are left over.
    right = run(8, 1)
    assert warnings_of() == []
    losses, _ = run(2, 4)
    assert losses[1] > 1.5 * right[0][2]
    assert warnings_of() == [
        "The last accumulation window of the stream has 1 of 4 batches, and transformers adds their loss and "
        "gradients to the next step; set `corrections=['stream_leftover']`."
    ]
    corrected = run(2, 4, corrections="stream_leftover")
    assert corrected[0] == pytest.approx(right[0], rel=1e-4)
    assert corrected[1] == pytest.approx(right[1], rel=1e-4)


# Several processes, without starting them


@pytest.mark.parametrize("options", [{}, {"split_batches": True}, {"dispatch_batches": True}, {"even_batches": False}])
@pytest.mark.parametrize("num_skipped", [0, 1])
@pytest.mark.parametrize("size", [1, 7, 8, 13])
def test_every_example_is_the_own_one_of_one_process(options, size, num_skipped):
    # A resumed run skips batches.
    num_skipped = min(num_skipped, (size - 1) // 4)
    batch_size = 4 if options.get("split_batches") else 2
    seen, repeated = [], set()
    for process in range(2):
        config = DataLoaderConfig(num_processes=2, process_index=process, **options)
        if options.get("dispatch_batches"):
            config = DataLoaderConfig(
                num_processes=2, process_index=process, broadcast=Broadcast(size, num_skipped), **options
            )
        loader = prepare_data_loader(DataLoader(range(size), batch_size=batch_size), config)
        loader = skip_first_batches(loader, num_skipped) if num_skipped else loader
        count = 0
        for batch in loader:
            num_own, count = count_repeats(len(batch), loader)
            seen += batch[:num_own].tolist()
        repeated.add(count)
    assert sorted(seen) == list(range(4 * num_skipped, size))
    assert options.get("even_batches") is False or len(repeated) == 1


class Broadcast:
    """What the first process sends to the second one: batches of four."""

    def __init__(self, size, num_skipped):
        self.batches = iter([*torch.arange(size).split(4)[num_skipped:], None])

    def __call__(self, batch):
        return next(self.batches)


def test_rows_are_cut_and_completed():
    data = {"a": torch.arange(3), "b": [torch.tensor(1.0), torch.ones(3, 2)], "c": "name", "d": torch.ones(2)}
    cut = resize_rows(data, 3, 2)
    assert cut["a"].tolist() == [0, 1]
    assert [tuple(part.shape) for part in cut["b"]] == [(), (2, 2)]
    assert resize_rows(cut["a"], 2, 4).tolist() == [0, 1, 1, 1]
    assert resize_rows(data, 3, 3) is data


# Evaluation


def mean_over_all_labels(model, data, collate):
    model.eval()
    total = count = 0
    for index in range(len(data)):
        batch = collate([data[index]])
        num_labels = int(batch["labels"].ne(-100).sum())
        with torch.no_grad():
            total, count = total + model(**batch).loss.item() * num_labels, count + num_labels
    return total / count


def test_evaluation_loss_does_not_depend_on_the_size_of_batches(tmp_path, warnings_of):
    model = tiny_t5()
    collate = transformers.DataCollatorForSeq2Seq(tiny_tokenizer())
    parts = {"model": model, "eval_dataset": Pairs(13), "data_collator": collate}
    right = mean_over_all_labels(model, Pairs(13), collate)
    theirs, ours = [], []
    for size in (1, 4, 13):
        options = {"per_device_eval_batch_size": size}
        theirs.append(toy_trainer(tmp_path, parts=parts, **options).evaluate()["eval_loss"])
        ours.append(
            toy_trainer(tmp_path, parts=parts, corrections="eval_batch_means", **options).evaluate()["eval_loss"]
        )
    assert ours == pytest.approx([right] * 3, rel=1e-5)
    assert np.abs(np.array(theirs) / right - 1).max() > 1e-3


class MeanLabel(nn.Module):
    """Its loss is the mean of the labels, which reach it as they are."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x, labels=None):
        return {"loss": self.scale * labels[labels != -100].float().mean()}


def rows_of(*labels):
    return [{"x": torch.zeros(1), "labels": torch.tensor(row)} for row in labels]


def test_distant_mean_of_batches_warns(tmp_path, warnings_of):
    parts = {"model": MeanLabel(), "eval_dataset": rows_of([1, -100, -100], [3, 3, 3])}
    trainer = toy_trainer(tmp_path, parts=parts, per_device_eval_batch_size=1)
    assert trainer.evaluate()["eval_loss"] == 2.0
    assert warnings_of() == [
        "`eval_loss` is 2, which depends on the size of the batches, since it is the mean of their means; the mean "
        "over all labels is 2.5; set `corrections=['eval_batch_means']`."
    ]
    trainer = toy_trainer(tmp_path, parts=parts, per_device_eval_batch_size=1, corrections="eval_batch_means")
    assert trainer.evaluate()["eval_loss"] == 2.5


def test_seq2seq_evaluation_counts_the_last_batch_in_full(tmp_path):
    model = tiny_t5()
    collate = transformers.DataCollatorForSeq2Seq(tiny_tokenizer())

    def loss(**changes):
        options = {
            "per_device_eval_batch_size": 4,
            "predict_with_generate": True,
            "generation_max_length": 4,
            **changes,
        }
        args = toy_arguments(tmp_path, portico.Seq2SeqTrainingArguments, **options)
        parts = {"model": model, "args": args, "eval_dataset": Pairs(5), "data_collator": collate}
        return toy_trainer(tmp_path, portico.Seq2SeqTrainer, parts).evaluate()["eval_loss"]

    def loss_of(data):
        parts = {"model": model, "eval_dataset": data, "data_collator": collate}
        return toy_trainer(tmp_path, parts=parts, per_device_eval_batch_size=4).evaluate()["eval_loss"]

    first, second = loss_of([Pairs(5)[index] for index in range(4)]), loss_of([Pairs(5)[4]])
    assert loss() == pytest.approx((first + second) / 2, rel=1e-5)
    assert loss(corrections="eval_duplicates") == pytest.approx((4 * first + second) / 5, rel=1e-5)


# Losses that are not finite


def diverging(folder, **changes):
    parts = {"model": MeanLabel(), "train_dataset": rows_of([1.0], [2.0], [math.nan], [3.0]), "eval_dataset": None}
    sizes = {"per_device_train_batch_size": 1, "train_sampling_strategy": "sequential", "num_train_epochs": 1}
    return toy_trainer(folder, parts=parts, learning_rate=0.0, **sizes, **changes)


def test_nan_warns_once_and_is_logged_as_zero(tmp_path, warnings_of):
    trainer = diverging(tmp_path)
    trainer.train()
    assert logged(trainer)[2] == 0.0
    (warning,) = warnings_of()
    assert warning == (
        "The loss of step 3 is nan, as are values of 'labels' in the batch, and transformers logs the mean of the "
        "losses since the last log in its place, 0.0 if there are none; remove them from the data, set "
        "`stop_on_nan=True` to stop there, or to log it set `corrections=['nan_losses']`."
    )


def test_nan_of_the_model_is_not_blamed_on_the_data(tmp_path, warnings_of):
    class Diverging(Line):
        def forward(self, x, labels=None):
            outputs = super().forward(x, labels)
            return {**outputs, "loss": outputs["loss"] * math.nan}

    toy_trainer(tmp_path, parts={"model": Diverging()}, max_steps=2).train()
    (message,) = warnings_of()
    assert "The loss of step 1 is nan, and transformers logs" in message
    assert "; lower `learning_rate` or `max_grad_norm`, set `stop_on_nan=True`" in message


def test_corrected_nan_is_logged(tmp_path, warnings_of):
    trainer = diverging(tmp_path, corrections="nan_losses")
    trainer.train()
    assert [math.isnan(loss) for loss in logged(trainer)[:3]] == [False, False, True]
    assert warnings_of() == []


@pytest.mark.parametrize("corrections", [None, "nan_losses", "all"])
@pytest.mark.parametrize("filtered", [True, False])
def test_training_stops_at_nan(corrections, filtered, tmp_path):
    trainer = diverging(tmp_path, corrections=corrections, stop_on_nan=True, logging_nan_inf_filter=filtered)
    with pytest.raises(InputError, match=r"The loss of step 3 is NaN or infinite, .* weights of step 2 .*lower"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert all(torch.isfinite(weight).all() for weight in trainer.model.parameters())


@pytest.mark.parametrize(
    ("corrections", "is_nan"), [(None, False), ("nan_losses", True), ("eval_batch_means", False), ("all", True)]
)
def test_nan_in_an_evaluation(corrections, is_nan, tmp_path):
    parts = {"model": MeanLabel(), "eval_dataset": rows_of([1.0], [math.nan], [3.0])}
    trainer = toy_trainer(tmp_path, parts=parts, per_device_eval_batch_size=1, corrections=corrections)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(math.nan if is_nan else 2.0, nan_ok=True)


# Resuming with steps of another size


class LongStream(IterableDataset):
    def __iter__(self):
        return iter(Points(200)[index] for index in range(200))


def indices_seen(folder, library, data, *, sizes, until=0, resume=None, **changes):
    """Train until a step on batches and windows of ``sizes``; return the indices of the examples, and the state."""
    places, seen = {tuple(row.tolist()): index for index, row in enumerate(Points(200).x)}, []

    class Noting(library.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            seen.extend(places[tuple(row.tolist())] for row in inputs["x"])
            return super().training_step(model, inputs, num_items_in_batch)

    class Until(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = control.should_training_stop or state.global_step == until

    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    options = {"num_train_epochs": 3, "save_strategy": "steps", "save_steps": 1, **changes}
    args = toy_arguments(folder, library.TrainingArguments, **dict(zip(names, sizes, strict=True)), **options)
    parts = {"args": args, "train_dataset": data, "eval_dataset": None, "callbacks": [Until()]}
    trainer = toy_trainer(folder, Noting, parts)
    trainer.train(resume_from_checkpoint=resume)
    return seen, trainer.state


@pytest.mark.parametrize(
    ("first", "data", "changes"),
    [
        (portico, Points(200), {}),
        (transformers, Points(200), {}),
        (portico, LongStream(), {"max_steps": 20}),
        (portico, LongStream(), {"max_steps": 20, "dataloader_drop_last": True}),
    ],
)
def test_resumed_run_with_steps_of_another_size_sees_each_example_once(first, data, changes, tmp_path, warnings_of):
    corrected = {"corrections": "resume_by_examples", **changes}
    runs = [indices_seen(tmp_path / "a", first, data, sizes=(4, 2), until=7, **changes)]
    resume = str(tmp_path / "a" / "checkpoint-7")
    # 56 examples are 18 batches of 3 and 2 examples, which end inside a window.
    runs += [indices_seen(tmp_path / "b", portico, data, sizes=(3, 4), until=9, resume=resume, **corrected)]
    resume = str(tmp_path / "b" / "checkpoint-9")
    runs += [indices_seen(tmp_path / "c", portico, data, sizes=(8, 1), resume=resume, **corrected)]
    seen, state = [index for run, _ in runs for index in run], runs[-1][1]
    assert [len(set(seen[start : start + 200])) for start in range(0, len(seen), 200)] == [
        min(200, len(seen) - start) for start in range(0, len(seen), 200)
    ]
    assert state.global_step == state.max_steps == changes.get("max_steps", state.max_steps)
    if not changes:
        assert len(seen) == 600
        assert state.epoch == 3
    assert warnings_of() == []


@pytest.mark.parametrize(("sizes", "warns"), [((4, 2), False), ((8, 1), False), ((4, 1), True), ((8, 2), True)])
def test_position_counted_in_steps_of_another_size_is_announced(sizes, warns, tmp_path, warnings_of):
    indices_seen(tmp_path, portico, Points(200), sizes=(4, 2), until=30)
    seen = [
        indices_seen(
            tmp_path / library.__name__, library, Points(200), sizes=sizes, resume=str(tmp_path / "checkpoint-30")
        )
        for library in (portico, transformers)
    ]
    assert seen[0][0] == seen[1][0]
    assert len(warnings_of()) == warns
    for warning in warnings_of():
        skipped = {(4, 1): "120 examples of epoch 0", (8, 2): "64 examples of epoch 2"}[sizes]
        assert warning == (
            "The run of the checkpoint had seen 40 examples of epoch 1 (counted from 0), and transformers, which "
            f"counts steps, skips {skipped}; set `gradient_accumulation_steps` or `per_device_train_batch_size` so "
            "that a step has as many examples as there, or to continue after the examples it had seen set "
            "`corrections=['resume_by_examples']`."
        )


def test_the_end_of_an_epoch_of_a_loader_that_drops_examples_is_no_position_within_it(tmp_path, warnings_of):
    """The loader decides, whatever `dataloader_drop_last` says."""

    class Dropping(portico.Trainer):
        def get_train_dataloader(self):
            return self.accelerator.prepare(DataLoader(self.train_dataset, 4, drop_last=True))

    def trainer(folder, **changes):
        options = {"num_train_epochs": 3, "save_strategy": "epoch", "gradient_accumulation_steps": 2, **changes}
        parts = {"args": toy_arguments(folder, portico.TrainingArguments, **options), "train_dataset": Points(15)}
        return toy_trainer(folder, Dropping, parts)

    whole = trainer(tmp_path)
    whole.train()
    for corrections in (None, "resume_by_examples"):
        resumed = trainer(tmp_path / str(corrections), corrections=corrections)
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert resumed.state.global_step == whole.state.global_step == 6
        assert str(resumed.model.state_dict()) == str(whole.model.state_dict())
    assert not [warning for warning in warnings_of() if "examples of epoch" in warning]


# Resuming a stream that is iterated again


class ShortStream(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(Points(self.size)[index] for index in range(self.size))


@pytest.mark.parametrize(("size", "batch"), [(14, 4), (16, 4), (9, 3)])
def test_stream_resumed_anywhere_ends_like_the_uninterrupted_run(size, batch, tmp_path):
    def stream_run(folder, **changes):
        options = {"max_steps": 8, "per_device_train_batch_size": batch, "corrections": "resume_by_examples"}
        parts = {"train_dataset": ShortStream(size), "eval_dataset": None}
        return toy_trainer(tmp_path / folder, parts=parts, **options, **changes)

    whole = stream_run("whole", save_strategy="steps", save_steps=1)
    whole.train()
    for step in range(1, 8):
        resumed = stream_run("resumed")
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert logged(resumed) == logged(whole)
        assert logged(resumed, "epoch")[:-1] == logged(whole, "epoch")[:-1]


def test_stream_iterated_again_is_said_to_be_the_cause(tmp_path, warnings_of):
    parts = {"train_dataset": ShortStream(14), "eval_dataset": None}
    options = {"max_steps": 8, "per_device_train_batch_size": 4}
    toy_trainer(tmp_path, parts=parts, save_strategy="steps", save_steps=1, **options).train()
    for step, seen in ((5, "4 examples of pass 2"), (4, "0 examples of pass 2")):
        toy_trainer(tmp_path / "resumed", parts=parts, **options).train(str(tmp_path / f"checkpoint-{step}"))
        message = warnings_of()[-1]
        assert f"after {seen} over the stream" in message
        assert "per_device_train_batch_size" not in message


# The order of a resumed epoch


class OwnOrder(portico.Trainer):
    def _get_train_sampler(self, train_dataset=None):
        generator = torch.Generator().manual_seed(3)
        return torch.utils.data.WeightedRandomSampler([1.0 + index for index in range(10)], 10, generator=generator)


class NumpyOrder:
    """A sampler with a generator of another library."""

    def __init__(self):
        self.generator = np.random.default_rng(5)

    def __len__(self):
        return 10

    def __iter__(self):
        return iter(self.generator.permutation(10).tolist())


class OrderOfNumpy(portico.Trainer):
    def _get_train_sampler(self, train_dataset=None):
        return NumpyOrder()


LENGTHS = [{"input_ids": [1] * (2 + index % 5), "labels": index % 3} for index in range(10)]
ORDERS = {
    "group_by_length": (portico.Trainer, {"train_sampling_strategy": "group_by_length"}, "LengthGroupedSampler"),
    "no seed": (portico.Trainer, {"accelerator_config": {"use_seedable_sampler": False}}, "RandomSampler"),
    "own sampler": (OwnOrder, {}, "WeightedRandomSampler"),
    "numpy": (OrderOfNumpy, {}, "NumpyOrder"),
}


def ordered_run(folder, kind, seen, **changes):
    class Noting(kind):
        def training_step(self, model, inputs, num_items_in_batch=None):
            seen.append(inputs["input_ids"].sum(1).tolist() + inputs["labels"].tolist())
            return super().training_step(model, inputs, num_items_in_batch)

    options = {"per_device_train_batch_size": 2, "num_train_epochs": 3, **changes}
    parts = {"model": Bag(), "train_dataset": LENGTHS, "eval_dataset": None, "data_collator": pad_lengths}
    return toy_trainer(folder, Noting, parts, **options)


def pad_lengths(examples):
    size = max(len(example["input_ids"]) for example in examples)
    rows = [example["input_ids"] + [0] * (size - len(example["input_ids"])) for example in examples]
    return {"input_ids": torch.tensor(rows), "labels": torch.tensor([example["labels"] for example in examples])}


@pytest.mark.parametrize("name", ORDERS)
def test_resumed_epoch_keeps_its_order(name, tmp_path, warnings_of):
    kind, options, sampler = ORDERS[name]
    whole = []
    ordered_run(tmp_path, kind, whole, save_strategy="steps", save_steps=1, **options).train()
    for step in (3, 7, 10, 12):
        for corrections in (None, ["resume_order"]):
            rest = []
            resumed = ordered_run(tmp_path / "resumed", kind, rest, corrections=corrections, **options)
            already = len(warnings_of())
            resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
            told = [message for message in warnings_of()[already:] if "resume_order" in message]
            if corrections or not told:
                assert rest == whole[step:]
            else:
                assert step > 5
                assert f"`{sampler}` draws the order" in told[0]
                assert rest != whole[step:]


def test_checkpoint_without_the_start_of_its_epoch_is_announced(tmp_path, caplog):
    kind, options, _sampler = ORDERS["group_by_length"]
    ordered_run(tmp_path, kind, [], save_strategy="steps", save_steps=7, **options).train()
    (tmp_path / "checkpoint-7" / "portico_epoch_start.pth").unlink()
    (tmp_path / "checkpoint-7" / "portico_manifest.json").unlink()
    resumed = ordered_run(tmp_path / "resumed", kind, [], corrections=["resume_order"], **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert "does not hold the states, which transformers does not write" in caplog.text


# The best model


SCORES = {2: 0.5, 4: 0.6, 6: 0.3, 8: 0.55, 10: 0.7}


@pytest.mark.parametrize("limit", [None, 1])
@pytest.mark.parametrize("corrections", [None, ["best_checkpoint"]])
def test_best_of_the_saved_models(corrections, limit, tmp_path, warnings_of):
    weights = {}

    class Keep(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model=None, **kwargs):
            weights[state.global_step] = model.linear.weight.detach().clone()

    parts = {"compute_metrics": lambda prediction: {"score": SCORES[trainer.state.global_step]}, "callbacks": [Keep()]}
    steps = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 4, "max_steps": 10}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": False}
    trainer = toy_trainer(tmp_path, parts=parts, corrections=corrections, save_total_limit=limit, **steps, **best)
    trainer.train()
    expected = 8 if corrections else 10
    assert torch.equal(trainer.model.linear.weight, weights[expected])
    assert trainer.state.best_global_step == 6
    assert [Path(folder or "").name for folder in [trainer.state.best_model_checkpoint]] == [
        "checkpoint-8" if corrections else ""
    ]
    assert len(warnings_of()) == (not corrections)
    assert all("`save_steps` equal to `eval_steps`" in message for message in warnings_of())


def test_best_that_was_not_saved_is_announced_at_the_end(tmp_path, warnings_of):
    class SaveLater(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            control.should_save = state.global_step == 4

    parts = {"compute_metrics": lambda prediction: {"score": trainer.state.global_step}, "callbacks": [SaveLater()]}
    steps = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": False}
    trainer = toy_trainer(tmp_path, parts=parts, **steps, **best)
    trainer.train()
    (message,) = warnings_of()
    assert "best evaluation was at step 2, of which there is no checkpoint" in message
    assert "the model at the end is that of step 4, the last" in message


# Resuming after the last step


@pytest.mark.parametrize("changes", [{}, {"ignore_data_skip": True}, {"parts": {"train_dataset": PointStream()}}])
def test_run_at_its_last_step_makes_no_more(changes, tmp_path, warnings_of):
    def resume(**more):
        trainer = toy_trainer(tmp_path, max_steps=3, **{**changes, **more})
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
        return trainer.state.global_step, trainer.model.state_dict()

    trainer = toy_trainer(tmp_path, max_steps=3, save_strategy="steps", save_steps=3, **changes)
    trainer.train()
    saved = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    assert resume()[0] == 4
    assert warnings_of() == [
        "The checkpoint is of step 3, and the run ends at step 3, yet transformers makes one more; set "
        "`corrections=['resume_at_max_steps']`."
    ]
    steps, weights = resume(corrections="resume_at_max_steps")
    assert steps == 3
    assert all(torch.equal(weights[name], tensor) for name, tensor in saved.items())


# Names of weights


def pictures():
    generator = torch.Generator().manual_seed(0)
    return [
        {"pixel_values": torch.randn(3, 8, 8, generator=generator), "labels": torch.tensor(index % 3)}
        for index in range(12)
    ]


def vit_trainer(library, folder, **changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    options = {"max_steps": 4, "per_device_train_batch_size": 4, "save_strategy": "steps", "save_steps": 2, **changes}
    args = toy_arguments(folder, library.TrainingArguments, **options)
    return library.Trainer(
        model=transformers.ViTForImageClassification(config),
        args=args,
        train_dataset=pictures(),
        eval_dataset=pictures(),
    )


@pytest.mark.pinned
def test_renamed_weights_are_found_at_a_resume(tmp_path, caplog):
    whole = vit_trainer(transformers, tmp_path)
    whole.train()
    resumed = {}
    for name, library, changes in (
        ("transformers", transformers, {}),
        ("portico", portico, {}),
        ("corrected", portico, {"corrections": "renamed_weights"}),
    ):
        caplog.clear()
        trainer = vit_trainer(library, tmp_path, **changes)
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        resumed[name] = logged(trainer)
        warned = "16 weights of the model keep the values they had" in caplog.text
        assert warned == (name == "portico")
    assert resumed["corrected"] == logged(whole)
    assert resumed["portico"] == resumed["transformers"] != logged(whole)


@pytest.mark.pinned
def test_renamed_weights_of_the_best_model_are_found(tmp_path):
    best = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True, "greater_is_better": True}
    trainer = vit_trainer(portico, tmp_path, **best, learning_rate=1.0, corrections="renamed_weights")
    trainer.train()
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-2")
    saved = transformers.ViTForImageClassification.from_pretrained(trainer.state.best_model_checkpoint)
    for name, weight in saved.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], weight, rtol=0, atol=0)
