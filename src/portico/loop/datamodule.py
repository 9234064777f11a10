"""The ``LightningDataModule`` and the feeds that Lightning's loops read batches from.

Lightning rebuilds a ``DataLoader``, adds samplers to it and fetches ahead of it, but takes any other sized iterable
unchanged. Both feeds are generators, so that nothing happens before the first batch is fetched.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
)

from portico.compat import transformers as hf_compat
from portico.compat.accelerate import GradientState
from portico.compat.lightning import disable_shuffling, overfits
from portico.compat.transformers import logger
from portico.data.loaders import (
    DataLoaderShard,
    SkipBatchSampler,
    StreamShardsLoader,
    get_user_batch_size,
    iterate_to_end,
    num_own_shares,
)
from portico.data.sharding import BatchSamplerShard
from portico.errors import InputError, InputTypeError
from portico.loop.plan import limit_batches

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments
    from portico.compat.annotations import DataCollator, Examples, Loader, ProcessingClass
    from portico.loop.hooks import TrainerHooks
    from portico.loop.run import TrainingRun


@dataclass(eq=False)
class TrainFeed:
    """The micro-batches of an epoch, fetched an accumulation window at a time; ``open_epoch`` yields them.

    Without a length Lightning would fetch a batch ahead, before ``on_train_begin``.
    """

    num_batches: int
    open_epoch: Callable[[], Iterator[Any]]

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        return self.open_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return an empty state: the step count says where to resume. Lightning warns without this method."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Ignore the empty state."""


@dataclass(eq=False)
class EvaluationFeed:
    """The batches of an evaluation, in the loader's order.

    Its length is the length of the whole loader, since Lightning applies the limit; ``num_batches`` are yielded, and
    ``limited_to`` is their number if they are fewer.

    Args:
        loader: Batches.
        limit: Value of Lightning's argument ``limited_by``, a number of batches or a part of them.
        name: Name of the set among several.
        renew: Makes a new loader for each pass, as transformers does; Lightning asks for loaders once.
    """

    loader: "Loader"
    limit: float = 1.0
    limited_by: str = "limit_val_batches"
    name: str | None = None
    renew: "Callable[[], Loader] | None" = None

    def __post_init__(self) -> None:
        self.is_whole = isinstance(self.limit, float) and self.limit == 1.0
        length = len(self)
        self.num_batches = None if length == sys.maxsize else length
        # An empty set is evaluated too, and has no metrics.
        if not self.is_whole and length != 0:
            self.num_batches = limit_batches(self.num_batches, self.limit, self.limited_by)
        is_cut = self.num_batches is not None and self.num_batches < length
        self.limited_to = self.num_batches if is_cut else None

    def __len__(self) -> int:
        if not hf_compat.has_length(self.loader):
            return sys.maxsize
        batches: Any = getattr(self.loader, "batch_sampler", None)
        while isinstance(batches, BatchSamplerShard | SkipBatchSampler):
            batches = batches.batch_sampler
        # Lightning stops at this number, transformers at the end. A batch sampler may yield more than its length says,
        # and so do several workers, each of which reads the whole stream.
        is_stream = isinstance(getattr(self.loader, "dataset", None), IterableDataset)
        is_read_twice = is_stream and getattr(self.loader, "num_workers", 0) > 1
        is_exact = len(self.loader) == 0 or (type(batches) in (BatchSampler, type(None)) and not is_read_twice)
        return len(self.loader) if is_exact else sys.maxsize

    def __iter__(self) -> Iterator[Any]:
        if self.renew is not None:
            self.loader = self.renew()
        if isinstance(self.loader, StreamShardsLoader):
            self.loader.must_be_even = True
        try:
            batches = iterate_to_end(iter(self.loader))
            yield from batches if self.is_whole else islice(batches, self.num_batches)
        finally:
            # Lightning does not read to the end, where the accelerator would stop tracking the last batch's size.
            if isinstance(self.loader, DataLoaderShard):
                GradientState()._remove_dataloader(self.loader)


# Stage and hook of a data module for what the trainer calls a set. Validation data are set up for a fit, too.
_STAGES = {
    "training": ("fit", "train_dataloader"),
    "evaluation": ("fit", "val_dataloader"),
    "test": ("test", "test_dataloader"),
    "prediction": ("predict", "predict_dataloader"),
}
_BATCH_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


class TrainerDataModule(pl.LightningDataModule):
    """Builds loaders from datasets, and feeds Lightning's loops from the trainer's ``get_*_dataloader`` methods."""

    def __init__(self, trainer: "TrainerHooks") -> None:
        super().__init__()
        self.hf_trainer = trainer
        self.run: TrainingRun | None = None
        self._announced: set[str] = set()
        self._adopted: dict[str, pl.LightningDataModule] = {}  # the user's, by the set that it was given for
        self._stages: WeakKeyDictionary[pl.LightningDataModule, set[str]] = WeakKeyDictionary()  # that are set up
        self._sources: WeakKeyDictionary[Any, tuple[pl.LightningDataModule, int]] = WeakKeyDictionary()  # of loaders

    def __deepcopy__(self, memo: dict[int, Any]) -> "TrainerDataModule":
        """Return a new data module, of the copied trainer if that is what is copied; a run is not copied."""
        return type(self)(memo.get(id(self.hf_trainer), self.hf_trainer))

    def __str__(self) -> str:
        # Lightning's representation iterates the loaders, which would draw random numbers.
        sets = (("train", self.hf_trainer.train_dataset), ("eval", self.hf_trainer.eval_dataset))
        return f"TrainerDataModule({', '.join(f'{name}={type(data).__name__}' for name, data in sets)})"

    __repr__ = __str__

    def train_dataloader(self) -> TrainFeed:
        if self.run is None:
            raise InputError(
                "`trainer.datamodule` feeds `trainer.module`; call `lightning.Trainer.fit(trainer.module, "
                "trainer.datamodule)`, or take a loader for another use from `trainer.get_train_dataloader()`."
            )
        loader, num_batches = self.run.loader, self.run.plan.steps_in_epoch
        if self.hf_trainer._portico.lightning_trainer.limit_train_batches != 1.0 and hf_compat.has_length(loader):
            # Lightning applies the limit itself; the plan counts the batches that remain.
            num_batches = len(loader)
        return TrainFeed(num_batches, self.run.batches)

    def val_dataloader(self) -> list[EvaluationFeed]:
        return self._feeds("limit_val_batches", self.hf_trainer.get_eval_dataloader, self.hf_trainer.eval_dataset)

    def test_dataloader(self) -> list[EvaluationFeed]:
        return self._feeds("limit_test_batches", self.hf_trainer.get_test_dataloader, self._test_set("test"))

    def predict_dataloader(self) -> list[EvaluationFeed]:
        return self._feeds("limit_predict_batches", self.hf_trainer.get_test_dataloader, self._test_set("prediction"))

    def _test_set(self, description: str) -> Any:
        """Return the loader of the user's data module that has one: a trainer has no test set, but evaluation data."""
        hook = _STAGES[description][1]
        own = next((data for data in self._collect_modules() if is_overridden(hook, data)), None)
        return self.hf_trainer.eval_dataset if own is None else self.loaders_of(own, description)

    def _feeds(self, limited_by: str, make_loader: "Callable[[Any], Loader]", given: Any) -> list[EvaluationFeed]:
        """Return a feed for a set, or for each set of a dict; an empty list if there is no set."""
        limit = getattr(self.hf_trainer._portico.lightning_trainer, limited_by)
        sets = given if isinstance(given, dict) else {} if given is None else {None: given}
        makers = {name: partial(make_loader, data) for name, data in sets.items()}
        return [EvaluationFeed(make(), limit, limited_by, name, renew=make) for name, make in makers.items()]

    def __getstate__(self) -> dict[str, Any]:
        # What is set up, and by which loaders, holds in this process only.
        return {name: value for name, value in vars(self).items() if name not in ("_stages", "_sources")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._stages = WeakKeyDictionary()
        self._sources = WeakKeyDictionary()

    # The user's own data modules

    def adopt(self, data: Any, description: str) -> Any:
        """Return the loaders of a user's data module for all runs of the trainer; other data unchanged."""
        if isinstance(data, pl.LightningDataModule):
            self._adopted[description] = data
        return self.loaders_of(data, description)

    @contextmanager
    def lending(self, data: Any, description: str) -> Iterator[Any]:
        """Yield the loaders of a user's data module for one call, and tear down what was set up for it."""
        is_own = isinstance(data, pl.LightningDataModule)
        if is_own and description == "test" and not is_overridden("test_dataloader", data):
            description = "prediction"
        stage = _STAGES[description][0]
        is_set_up = not is_own or stage in self._stages.get(data, ())
        try:
            yield self.loaders_of(data, description)
        except BaseException as error:
            if not self.hf_trainer.is_in_train:  # else Lightning calls the hook
                for module in {*self._collect_modules(), *([data] if is_own else [])}:
                    module.on_exception(error)
            raise
        if not is_set_up:
            self._tear_down(data, stage)

    def setup(self, stage: str) -> None:
        """Set up the user's data modules for ``stage``, unless they are, and take their loaders again."""
        read = {"fit": ("training", "evaluation"), "validate": ("evaluation",)}.get(stage, ())
        new = [(description, data) for description, data in self._adopted.items() if stage not in self._stages[data]]
        for data in self._collect_modules():
            self._set_up(data, stage)
        for description, data in new:
            if description in read:
                name = "train_dataset" if description == "training" else "eval_dataset"
                setattr(self.hf_trainer, name, self.loaders_of(data, description, stage))

    def teardown(self, stage: str) -> None:
        for data in self._collect_modules():
            self._tear_down(data, stage)

    def on_exception(self, exception: BaseException) -> None:
        for data in self._collect_modules():
            data.on_exception(exception)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the user's data modules that have one, by class."""
        states = {type(data).__qualname__: data.state_dict() for data in self._collect_modules()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for data in self._collect_modules():
            if (state := state_dict.get(type(data).__qualname__)) is not None:
                data.load_state_dict(state)

    def _collect_modules(self) -> list[pl.LightningDataModule]:
        """Return the user's data modules, each once, with the current ``lightning.Trainer``."""
        modules = list({id(data): data for data in self._adopted.values()}.values())
        for data in modules:
            data.trainer = self.hf_trainer._portico.lightning_trainer
        return modules

    def _set_up(self, data: pl.LightningDataModule, stage: str) -> None:
        args, done = self.hf_trainer.args, self._stages.setdefault(data, set())
        data.trainer = self.hf_trainer._portico.lightning_trainer
        if not done:
            with args.main_process_first():
                if args.local_process_index == 0 or not data.prepare_data_per_node:
                    data.prepare_data()
        if stage not in done:
            data.setup(stage)
            done.add(stage)

    def _tear_down(self, data: pl.LightningDataModule, stage: str) -> None:
        if stage in self._stages[data]:
            data.trainer = self.hf_trainer._portico.lightning_trainer
            data.teardown(stage)
            self._stages[data].discard(stage)

    def loaders_of(self, data: Any, description: str, stage: str | None = None) -> Any:
        """Return the loader, or the loaders by name, of a user's data module; other data are returned unchanged.

        The data module is prepared and set up as by ``lightning.Trainer``, unless it is set up for this stage.
        """
        if not isinstance(data, pl.LightningDataModule):
            return data
        usual_stage, hook = _STAGES[description]
        self._set_up(data, stage or usual_stage)
        loaders = getattr(data, hook)()
        if isinstance(loaders, list | tuple):
            named = {str(index): loader for index, loader in enumerate(loaders)}
            loaders = loaders[0] if len(loaders) == 1 else named
        several = isinstance(loaders, dict) and description == "evaluation"
        if not isinstance(loaders, DataLoader) and not several:
            raise InputError(
                f"`{type(data).__name__}.{hook}()` returned a {type(loaders).__name__}, and {description} takes one "
                "`DataLoader`; let it return one."
            )
        if any(is_overridden(name, data) for name in _BATCH_HOOKS):
            for index, loader in enumerate(loaders.values() if several else [loaders]):
                self._sources[loader] = (data, index)
        return loaders

    def transfer_of(self, loader: Any) -> Callable[[Any], Any] | None:
        """Return the hooks of the user's data module for a batch of ``loader``; ``None`` if it has none."""
        if loader not in self._sources:
            return None
        data, index = self._sources[loader]
        trainer = self.hf_trainer

        def transfer(batch: Any) -> Any:
            data.trainer = trainer._portico.lightning_trainer
            batch = data.on_before_batch_transfer(batch, index)
            batch = data.transfer_batch_to_device(batch, trainer.args.device, index)
            return data.on_after_batch_transfer(batch, index)

        return transfer

    def given_loader(self, loader: "DataLoader[Any]", description: str) -> "DataLoader[Any]":
        """Return the user's own loader, and warn once about the training arguments that it overrides."""
        args, is_training = self.hf_trainer.args, description == "training"
        if self.hf_trainer.accelerator.data_parallel_size > 1 < (count := num_own_shares(loader)):
            raise InputError(
                f"The {description} loader divides its data over {count} processes, and the trainer divides every "
                "loader; let it read all of them, without `DistributedSampler` and `split_dataset_by_node`."
            )
        if is_training and args.auto_find_batch_size:
            raise InputError(
                "`auto_find_batch_size=True` makes batches smaller, which a given `DataLoader` does not allow; give "
                "its `dataset` as `train_dataset`, or leave the argument out."
            )
        size = "per_device_train_batch_size" if is_training else "per_device_eval_batch_size"
        overruled = {size: loader.batch_size, "dataloader_num_workers": loader.num_workers}
        if is_training:
            overruled["dataloader_drop_last"] = loader.drop_last
        different = [f"{name}={getattr(args, name)}" for name, own in overruled.items() if own != getattr(args, name)]
        if is_training and args.train_sampling_strategy != "random":
            different.append(f"train_sampling_strategy={args.train_sampling_strategy!r}")
        message = (
            f"The {description} loader is used as it is, with batches of {get_user_batch_size(loader)}: "
            f"{', '.join(different)} has no effect on it; set it in the loader."
        )
        if different and message not in self._announced:
            self._announced.add(message)
            logger.warning(message)
        repeats = is_training and overfits(self.hf_trainer._portico.lightning_trainer)
        return disable_shuffling(loader) if repeats else loader

    def build_loader(
        self,
        dataset: "Examples",
        *,
        description: str,
        batch_size: int,
        collate_fn: "DataCollator",
        sampler_fn: "Callable[[Examples], Sampler[Any] | None] | None" = None,
        is_training: bool = False,
    ) -> "DataLoader[Any]":
        """Return a plain loader over ``dataset``.

        ``description`` is its name in messages: ``"training"``, ``"evaluation"`` or ``"test"``. ``sampler_fn`` returns
        the sampler of data with indices; workers are seeded only with ``is_training``.
        """
        trainer, args = self.hf_trainer, self.hf_trainer.args
        if isinstance(dataset, DataLoader):
            raise InputError(
                f"The {description} data are a DataLoader, but `{type(trainer).__name__}` makes its own batches; give "
                "its `dataset`."
            )
        if args.dataloader_persistent_workers and args.dataloader_num_workers == 0:
            raise InputError(
                "`dataloader_persistent_workers=True` keeps worker processes, but `dataloader_num_workers=0` starts "
                "none; set `dataloader_num_workers` to 1 or more, or leave `dataloader_persistent_workers` out."
            )
        options: dict[str, Any] = {
            "batch_size": batch_size,
            "collate_fn": collate_fn,
            "num_workers": args.dataloader_num_workers,
            # Pinned memory speeds up copies to an accelerator; without an accelerator torch only warns about it.
            "pin_memory": args.dataloader_pin_memory and args.device.type != "cpu",
            "persistent_workers": args.dataloader_persistent_workers,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "in_order": args.dataloader_in_order,
        }
        if not isinstance(dataset, IterableDataset):
            sampler = sampler_fn(dataset) if sampler_fn is not None else None
            if isinstance(sampler, hf_compat.BatchRebalanceSampler):
                # It yields whole batches of varying size.
                del options["batch_size"]
                options["batch_sampler"] = sampler
            else:
                drop_last = args.dataloader_drop_last
                if not isinstance(drop_last, bool):  # torch names its own argument, `drop_last`
                    raise InputTypeError(
                        f"`dataloader_drop_last={drop_last!r}` cannot be used; set it to True or False."
                    )
                options |= {"sampler": sampler, "drop_last": drop_last}
            if is_training:
                rank = args.process_index // self.hf_trainer.accelerator.processes_per_batch
                options["worker_init_fn"] = partial(
                    hf_compat.seed_worker, num_workers=args.dataloader_num_workers, rank=rank
                )
        return DataLoader(dataset, **options)

    def remove_unused_columns(
        self, dataset: "Examples", description: str | None, *, taken: Sequence[str]
    ) -> "Examples":
        """Return ``dataset`` (of the ``datasets`` library) with only the columns in ``taken``."""
        ignored = sorted(set(dataset.column_names) - set(taken))
        if len(ignored) == len(dataset.column_names):
            raise InputError(
                f"No columns in the dataset match the model's forward method signature: ({', '.join(taken)}). The "
                f"following columns have been ignored: [{', '.join(ignored)}]. Please check the dataset and model. "
                "You may need to set `remove_unused_columns=False` in `TrainingArguments`. This is the "
                f"{description or 'given'} set; rename its columns, or give a `data_collator` that makes the "
                "model's inputs."
            )
        self.announce_ignored(ignored, description)
        return dataset.remove_columns(ignored)

    def removing_collator(
        self, collator: "DataCollator", description: str | None, *, taken: Sequence[str]
    ) -> hf_compat.RemoveColumnsCollator:
        """Return ``collator`` behind a filter that drops the columns that are not in ``taken``."""
        model_name = type(self.hf_trainer.model).__name__
        return hf_compat.RemoveColumnsCollator(collator, taken, logger, model_name, description)

    def announce_ignored(self, columns: list[str], description: str | None) -> None:
        """Log once which columns of a set are dropped."""
        message = (
            f"Columns of the {description or 'given'} set that `{type(self.hf_trainer.model).__name__}.forward` does "
            f"not take are left out: {', '.join(columns)}; set `remove_unused_columns=False` to keep them."
        )
        if columns and message not in self._announced:
            self._announced.add(message)
            logger.info(message)


def build_train_sampler(
    dataset: "Examples",
    args: "TrainingArguments",
    processing_class: "ProcessingClass | None",
    *,
    processes_per_batch: int = 1,
) -> Sampler[Any] | None:
    """Return the sampler for ``args.train_sampling_strategy``; ``None`` for data without a length.

    Each ``processes_per_batch`` processes in a row read the same examples.
    """
    strategy = args.train_sampling_strategy
    if not hf_compat.has_length(dataset):
        if strategy in ("group_by_length", "batch_rebalance"):
            logging.getLogger(__name__).warning(
                f"`train_sampling_strategy='{strategy}'` is ignored because the training dataset does not implement "
                "`__len__` (e.g. an `IterableDataset`). Examples will be consumed in the dataset's own order."
            )
        return None
    if strategy == "group_by_length":
        batch_size = args.train_batch_size * args.gradient_accumulation_steps
        return hf_compat.LengthGroupedSampler(batch_size, **_build_grouping_options(dataset, args, processing_class))
    if strategy == "batch_rebalance":
        return _build_rebalancing_sampler(dataset, args, processing_class, processes_per_batch)
    return SequentialSampler(dataset) if strategy == "sequential" else RandomSampler(dataset)


def build_eval_sampler(
    dataset: "Examples", args: "TrainingArguments", processing_class: "ProcessingClass | None"
) -> Sampler[int] | None:
    """Return the sampler of an evaluation: the order of the data, or by length where training is grouped by length."""
    if not hf_compat.has_length(dataset):
        return None
    if args.train_sampling_strategy == "group_by_length":
        # A generator seeded here, so that an evaluation draws nothing from the global generator.
        generator = torch.Generator().manual_seed(args.seed if args.data_seed is None else args.data_seed)
        options = _build_grouping_options(dataset, args, processing_class)
        return hf_compat.LengthGroupedSampler(args.eval_batch_size, **options, generator=generator)
    return SequentialSampler(dataset)


def _build_grouping_options(
    dataset: "Examples", args: "TrainingArguments", processing_class: "ProcessingClass | None"
) -> dict[str, Any]:
    lengths, name = _read_lengths(dataset, args), _first_input_name(processing_class)
    # Iterated by number, a data set that never raises an IndexError would not end.
    examples = dataset if hasattr(type(dataset), "__iter__") else Subset(dataset, range(len(dataset)))
    return {"dataset": examples, "lengths": lengths, "model_input_name": name}


def _build_rebalancing_sampler(
    dataset: "Examples",
    args: "TrainingArguments",
    processing_class: "ProcessingClass | None",
    processes_per_batch: int,
) -> hf_compat.BatchRebalanceSampler:
    lengths = _read_lengths(dataset, args)
    if lengths is None:
        name = _first_input_name(processing_class) or "input_ids"
        if not isinstance(dataset[0], Mapping) or name not in dataset[0]:
            raise InputError(
                "Can only automatically infer lengths for datasets whose items are dictionaries with an "
                f"'{name}' key. `train_sampling_strategy='batch_rebalance'` needs them; add a column "
                f"`{args.length_column_name}`, or choose another strategy."
            )
        lengths = [len(dataset[index][name]) for index in range(len(dataset))]
    dp_size = args.world_size // processes_per_batch
    return hf_compat.BatchRebalanceSampler(
        lengths=lengths,
        effective_batch_size=args.train_batch_size * args.gradient_accumulation_steps * dp_size,
        dp_size=dp_size,
        grad_accum=args.gradient_accumulation_steps,
        rank=args.process_index // processes_per_batch,
        drop_last=args.dataloader_drop_last,
    )


def _read_lengths(dataset: "Examples", args: "TrainingArguments") -> list[int] | None:
    column = args.length_column_name
    if column not in (getattr(dataset, "column_names", None) or ()):
        return None
    lengths = dataset[column]
    return lengths.tolist() if isinstance(lengths, torch.Tensor) else list(lengths)


def _first_input_name(processing_class: "ProcessingClass | None") -> str | None:
    names = getattr(processing_class, "model_input_names", None)
    return names[0] if names else None
