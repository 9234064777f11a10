"""Training scenarios of several processes: a script that ``torchrun`` or portico launches.

Usage: process_scenarios.py FOLDER SCENARIO,SCENARIO,... [STRATEGY]
Every process writes FOLDER/SCENARIO/LIBRARY-RANK.pt. Without a strategy both libraries train; with one, portico starts
the processes, or with "auto" finds them started.
"""

import sys
import warnings
from pathlib import Path

import accelerate
import datasets
import torch
import torch.distributed
import transformers
from datasets.distributed import split_dataset_by_node
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler
from torchmetrics.classification import MulticlassAccuracy

import portico
from models import Bag, Sequences, ToyDataset, ToyStream, pad_everything, tiny_gpt2
from parity.peers import run, untimed
from parity.scenarios import (
    REBALANCED,
    accuracy,
    adversarial,
    calling_super,
    overriding_training_step,
    plain_model,
    raw_backward,
)
from parity.switches import throw_as_parent

# In this order: the second also resumes from the checkpoints of the first.
LIBRARIES = {"portico": portico, "transformers": transformers}
SAVING = {
    "gradient_accumulation_steps": 2,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
}


def predictions(trainer):
    prediction = trainer.predict(ToyDataset(7, seed=4))
    return {
        "predictions": prediction.predictions,
        "labels": prediction.label_ids,
        "test": untimed(prediction.metrics),
        "eval": untimed(trainer.evaluate()),
    }


def calling_accelerate(trainer_class):
    """A subclass that calls accelerate's own functions, as libraries do."""

    class Client(trainer_class):
        def training_step(self, model, inputs, num_items_in_batch=None):
            state = accelerate.PartialState()
            ranks = accelerate.utils.gather_object([state.process_index])
            with state.split_between_processes([1.0, 2.0, 3.0]) as part:
                weight = accelerate.utils.reduce(torch.tensor(sum(part, 0.0)), reduction="sum").item() / 6
            assert ranks == list(range(self.args.world_size))
            assert state.distributed_type == self.accelerator.distributed_type
            assert state.backend == self.args.distributed_state.backend == "gloo"
            return weight * super().training_step(model, inputs, num_items_in_batch)

    return Client


class Normalised(Bag):
    """A model with running statistics, which differ between processes, and an unused layer."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(8)
        self.unused = torch.nn.Linear(8, 3)

    def logits(self, input_ids):
        return self.head(self.norm(self.embedding(input_ids).mean(1)))


def second_run(trainer):
    return {"loss": trainer.train().training_loss, **predictions(trainer)}


def collectives(trainer):
    accelerator, rank = trainer.accelerator, trainer.args.process_index
    own = torch.full((2, 2 + rank), float(rank))
    pad = accelerator.pad_across_processes
    seen = []
    with trainer.args.main_process_first():
        seen.append(rank)
    accelerator.wait_for_everyone()
    return {
        "padded": accelerator.gather(pad(own, dim=1, pad_index=-1)),
        "flags": accelerator.gather(
            accelerator.pad_across_processes(own.long(), dim=1, pad_index=-100, pad_first=True)
        ),
        "nested": accelerator.gather({"a": (torch.tensor(rank), [torch.arange(3)])}),
        "sum": accelerator.reduce(torch.tensor([rank + 1.0])),
        "mean": accelerator.reduce(torch.tensor([rank + 1.0]), reduction="mean"),
        "objects": accelerator.gather_for_metrics(["a" * (rank + 1), "b"]),
        "ragged": accelerator.gather_for_metrics([torch.ones(rank + 1)], use_gather_object=True),
        # Of which the training left its last batch.
        "cut": accelerator.gather_for_metrics(torch.arange(9)),
        "who": [accelerator.num_processes, accelerator.process_index, accelerator.is_main_process],
        "saves": [trainer.args.should_save, trainer.args.should_log, trainer.args.local_process_index],
        "seen": seen,
    }


def predictions_and_streamed_accuracy(trainer):
    """Count correct answers, where the library supports it also with a metric that is updated per batch."""
    outcome = predictions(trainer)
    streams = isinstance(trainer, portico.Trainer)
    trainer.compute_metrics = MulticlassAccuracy(num_classes=3, average="micro") if streams else accuracy
    metrics = trainer.evaluate()
    # The libraries pass different arguments to the metric.
    trainer.state.log_history.pop()
    share = metrics["eval_MulticlassAccuracy" if streams else "eval_accuracy"]
    return {**outcome, "num_right": round(share * len(trainer.eval_dataset), 4)}


def seeing(trainer_class):
    """A subclass that notes the examples of this process."""

    class Seeing(trainer_class):
        def training_step(self, model, inputs, num_items_in_batch=None):
            self.__dict__.setdefault("seen", []).append(inputs["input_ids"].tolist())
            return super().training_step(model, inputs, num_items_in_batch)

    return Seeing


def seen(trainer):
    return {"seen": trainer.seen}


def with_distributed_sampler(trainer_class):
    class Own(seeing(trainer_class)):
        def _get_train_sampler(self, train_dataset=None):
            return DistributedSampler(self.train_dataset, shuffle=False)

    return Own


def with_own_batches(trainer_class):
    class Own(seeing(trainer_class)):
        def get_train_dataloader(self):
            sampler = DistributedSampler(self.train_dataset, seed=7)
            loader = DataLoader(self.train_dataset, batch_sampler=BatchSampler(sampler, 3, drop_last=False))
            return self.accelerator.prepare(loader)

    return Own


def with_own_loader(trainer_class):
    class Own(seeing(trainer_class)):
        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, batch_size=4, sampler=DistributedSampler(self.train_dataset))

    return Own


def with_whole_batches(trainer_class):
    class Own(seeing(trainer_class)):
        def get_train_dataloader(self):
            batches = BatchSampler(SequentialSampler(self.train_dataset), 3, drop_last=False)
            return self.accelerator.prepare(DataLoader(self.train_dataset, sampler=batches, batch_size=None))

    return Own


def split_stream():
    rows = {"input_ids": ToyDataset(32).tokens.tolist(), "labels": [index % 3 for index in range(32)]}
    stream = datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=8).with_format("torch")
    return split_dataset_by_node(stream, torch.distributed.get_rank(), torch.distributed.get_world_size())


# Samplers, batch samplers, loaders and streams that know the rank of their process.
KNOWING = {"base": seeing, "after": seen}
RANKED = {
    "rebalanced": {**REBALANCED, **KNOWING},
    "rebalanced_drop_last": {**REBALANCED, **KNOWING, "dataloader_drop_last": True},
    "rebalanced_accumulation": {**REBALANCED, **KNOWING, "gradient_accumulation_steps": 2},
    "distributed_sampler": {**KNOWING, "base": with_distributed_sampler},
    "own_batches": {**KNOWING, "base": with_own_batches},
    "own_loader": {**KNOWING, "base": with_own_loader},
    "whole_batches": {**KNOWING, "base": with_whole_batches},
    "split_stream": {**KNOWING, "train_dataset": split_stream, "max_steps": 3},
    "split_stream_by_all": {
        **KNOWING,
        "train_dataset": split_stream,
        "max_steps": 3,
        "accelerator_config": {"dispatch_batches": False},
    },
}

SCENARIOS = {
    **RANKED,
    "basic": {
        "after": predictions_and_streamed_accuracy,
        "eval_strategy": "epoch",
        "trainer_options": {"compute_metrics": accuracy},
    },
    "accumulation": {
        "gradient_accumulation_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "max_grad_norm": 0.1,
    },
    "mean_of_means": {"make_model": plain_model, "gradient_accumulation_steps": 2, "after": collectives},
    "bfloat16": {
        "bf16": True,
        "gradient_accumulation_steps": 2,
        "eval_strategy": "epoch",
        "trainer_options": {"compute_metrics": accuracy},
        "after": predictions,
    },
    "own_token_means": {"average_tokens_across_devices": False, "gradient_accumulation_steps": 2},
    "causal": {
        "make_model": tiny_gpt2,
        "train_dataset": lambda: Sequences(21, ragged=True),
        "eval_dataset": lambda: Sequences(9, ragged=True, seed=1),
        "eval_strategy": "epoch",
        "trainer_options": {"data_collator": pad_everything, "compute_metrics": lambda prediction: {"n": 1.0}},
        "gradient_accumulation_steps": 2,
    },
    "stream": {
        "train_dataset": ToyStream,
        "eval_dataset": lambda: ToyStream(11),
        "eval_strategy": "epoch",
        "max_steps": 5,
        "gradient_accumulation_steps": 3,
        "trainer_options": {"compute_metrics": accuracy},
    },
    "draws": {"train_dataset": lambda: ToyDataset(draws=True), "gradient_accumulation_steps": 2},
    "running_statistics": {"make_model": Normalised, "after": second_run, "eval_strategy": "epoch"},
    "super": {"base": calling_super, "gradient_accumulation_steps": 3},
    "own_step": {"base": overriding_training_step, "gradient_accumulation_steps": 2},
    "raw_backward": {"base": raw_backward, "gradient_accumulation_steps": 2},
    "client": {
        "base": calling_accelerate,
        "gradient_accumulation_steps": 2,
        "after": predictions,
    },
    "adversarial": {"base": adversarial, "gradient_accumulation_steps": 2, "after": predictions},
    "saves": {**SAVING, "load_best_model_at_end": True, "after": predictions},
    # Fewer examples than processes.
    "shorter": {
        "train_dataset": lambda: ToyDataset(2),
        "eval_dataset": lambda: ToyDataset(1, seed=1),
        "eval_strategy": "epoch",
        "trainer_options": {"compute_metrics": accuracy},
        "after": predictions,
    },
    "shorter_stream_by_all": {
        "accelerator_config": {"dispatch_batches": False},
        "train_dataset": lambda: ToyStream(2),
        "eval_dataset": lambda: ToyStream(1),
        "eval_strategy": "epoch",
        "max_steps": 3,
    },
    "single_rows": {"eval_strategy": "epoch", "per_device_eval_batch_size": 1},
    "split": {"accelerator_config": {"split_batches": True}, "eval_strategy": "epoch"},
    "uneven": {"accelerator_config": {"even_batches": False}, "max_steps": 3},
    "dispatched": {"accelerator_config": {"dispatch_batches": True}, "eval_strategy": "epoch"},
    "dispatched_stream": {
        "train_dataset": ToyStream,
        "eval_dataset": lambda: ToyStream(11),
        "eval_strategy": "epoch",
        "max_steps": 4,
    },
    "dispatched_split": {
        "accelerator_config": {"dispatch_batches": True, "split_batches": True},
        "train_dataset": ToyStream,
        "max_steps": 4,
    },
    "stream_by_all": {
        "accelerator_config": {"dispatch_batches": False},
        "train_dataset": lambda: ToyStream(draws=True),
        "eval_dataset": lambda: ToyStream(11),
        "eval_strategy": "epoch",
        "max_steps": 5,
    },
    "order_not_seeded": {"accelerator_config": {"use_seedable_sampler": False}, "num_train_epochs": 3},
    "synced": {
        "accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
        "gradient_accumulation_steps": 3,
    },
    "lengths": {"train_sampling_strategy": "group_by_length", "eval_strategy": "epoch"},
    "workers": {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "eval_strategy": "epoch"},
    "drop_last": {"dataloader_drop_last": True, "eval_strategy": "epoch"},
    "objects": {"eval_use_gather_object": True, "eval_strategy": "epoch", "include_for_metrics": ["inputs", "loss"]},
    "tokens_seen": {"include_num_input_tokens_seen": "all", "ddp_find_unused_parameters": False},
}


def main(folder, names, strategy=None):
    throw_as_parent()
    warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")
    if strategy is not None:
        placement = {"strategy": strategy, "devices": None if strategy == "auto" else 2}
        for name in names.split(","):
            _record(Path(folder) / name, "portico", {**SCENARIOS[name], **placement})
        return
    for name in names.split(","):
        for library in LIBRARIES:
            _record(Path(folder) / name, library, SCENARIOS[name])
        if name == "saves":
            _resume(Path(folder) / name)


def _resume(folder):
    """Resume from the other library's checkpoint."""
    for first, second in (("portico", "transformers"), ("transformers", "portico"), ("transformers", "transformers")):
        source = folder / f"{first}-run" / "checkpoint-3"
        _record(folder / f"{first}-{second}", second, {**SAVING, "save_strategy": "no", "resume": str(source)})


def _record(folder, library, options):
    outcome = run(LIBRARIES[library], folder / "run", **options)
    rank = outcome.trainer.args.process_index
    state = {**vars(outcome.trainer.state), "log_history": None, "stateful_callbacks": None}
    kept = {
        "events": outcome.events,
        "history": outcome.history,
        "weights": outcome.weights,
        "rng": outcome.rng,
        "loss": outcome.train_output.training_loss,
        "state": untimed(state),
        "extra": outcome.extra,
    }
    torch.save(kept, folder / f"{library}-{rank}.pt")
    torch.distributed.barrier()
    if rank == 0 and (folder / "run").exists():
        (folder / "run").rename(folder / f"{library}-run")
    torch.distributed.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
