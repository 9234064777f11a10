"""Loaders of combined batches, for the facade."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from portico.errors import InputError
from portico.hf_compat import has_length
from portico.ipu.ahead import AheadLoader
from portico.ipu.facade.programs import ProgramMethods
from portico.ipu.remainder import without_remainder
from portico.loop.evaluation import EvaluationSession


class LoadingMethods(ProgramMethods):
    """How the facade loads combined batches.

    Attributes:
        eval_data_collator: Makes the batches of evaluations and predictions.
    """

    eval_data_collator: Any

    def get_train_dataloader(self) -> Any:
        """Return the training loader.

        Raises:
            InputError: If the data are too few for one call.
        """
        loader = super().get_train_dataloader()  # type: ignore[safe-super]
        if has_length(loader) and len(loader) == 0:
            config = self.ipu_config
            raise InputError(
                f"Couldn't get first sample from dataloader, as the training data have {len(self.train_dataset)} "
                f"examples and one call takes {self.combined_train_batch_size}: micro-batch "
                f"{self.args.per_device_train_batch_size} x gradient accumulation "
                f"{config.gradient_accumulation_steps} x replicas {config.replication_factor} x device iterations "
                f"{config.device_iterations}. Lower one of these, give more data, or set `pad_on_batch_axis=True`."
            )
        return loader

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        size = self.combined_train_batch_size if is_training else self.combined_eval_batch_size
        mode = self.args.dataloader_mode if is_training else "sync"
        rebatches = mode == "async_rebatched"
        with self._collating_with(self.data_collator if is_training else self.eval_data_collator):
            loader = self.datamodule.build_loader(
                dataset,
                description=description,
                batch_size=self._worker_batch_size(size) if rebatches else size,
                sampler_fn=sampler_fn,
                is_training=is_training,
            )
        drops_last = is_training and not self.args.pad_on_batch_axis
        prepared = self.accelerator.prepare(without_remainder(loader) if drops_last and not rebatches else loader)
        if mode == "sync":
            return prepared
        return AheadLoader(prepared, batch_size=size, rebatches=rebatches, drop_last=drops_last)

    def _worker_batch_size(self, combined: int) -> int:
        """Return the rows that a worker loads at once, at most a combined batch."""
        workers = self.args.dataloader_num_workers
        return min(max(2 * (combined // workers), 1), combined) if workers else combined

    @contextmanager
    def _collating_with(self, collator: Any) -> Iterator[None]:
        usual, self.data_collator = self.data_collator, collator
        try:
            yield
        finally:
            self.data_collator = usual

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        point: tuple[int, int] = super()._init_training_state(*args, **kwargs)  # type: ignore[misc]
        # A resumed run compares it with the argument, which counts rows of a micro-batch.
        self.state.train_batch_size = self.args.train_batch_size
        return point

    def _evaluation_session(self, dataloader: Any, **options: Any) -> EvaluationSession:
        session: EvaluationSession = super()._evaluation_session(dataloader, **options)  # type: ignore[misc]
        # The loss of a batch counts once for each of its rows.
        session.batch_size = self.combined_eval_batch_size
        return session
