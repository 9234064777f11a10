"""Loaders, columns and batches."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch
from transformers.trainer_utils import has_length, unwrap_peft_model

from portico.errors import InputKeyError, InputTypeError
from portico.facade.historic_overrides import leaves_out
from portico.facade.sampling import SamplingMethods
from portico.loading.loaders import move_to_device


class DataMethods(SamplingMethods):
    """What the facade makes of data sets."""

    def get_train_dataloader(self) -> Any:
        """Return the training loader.

        Raises:
            ValueError: If there is no training set.
        """
        if self.train_dataset is None:
            raise ValueError("There is no training data: give `train_dataset` to the trainer, then call `train()`.")
        return self._get_dataloader(
            self.train_dataset, "training", self._train_batch_size, self._get_train_sampler, is_training=True
        )

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the evaluation loader.

        Args:
            eval_dataset: A data set, or the name of one in ``eval_dataset``; by default the trainer's own.

        Raises:
            ValueError: If there is no evaluation set.
        """
        if eval_dataset is None and self.eval_dataset is None:
            raise ValueError("There is no evaluation data: give `eval_dataset` to the trainer or to `evaluate()`.")
        key = eval_dataset if isinstance(eval_dataset, str) else "eval"
        cached = self.__dict__.setdefault("_eval_dataloaders", {})
        if self.args.dataloader_persistent_workers and key in cached:
            return cached[key]
        if isinstance(eval_dataset, str):
            eval_dataset = self._named_eval_dataset(eval_dataset)
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        loader = self._get_dataloader(dataset, "evaluation", self.args.eval_batch_size, self._get_eval_sampler)
        if self.args.dataloader_persistent_workers:
            cached[key] = loader
        return loader

    def _named_eval_dataset(self, name: str) -> Any:
        sets = self.eval_dataset if isinstance(self.eval_dataset, Mapping) else {}
        if name not in sets:
            raise InputKeyError(
                f"`eval_dataset={name!r}` names a set, but the trainer's `eval_dataset` holds "
                f"{', '.join(map(repr, sets)) or 'none by name'}; give one of them, or a data set."
            )
        return sets[name]

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return a loader over ``test_dataset``.

        Raises:
            InputTypeError: If there is no test set.
        """
        if test_dataset is None:
            raise InputTypeError("There is nothing to predict on: give a data set to `predict()`.")
        return self._get_dataloader(test_dataset, "test", self.args.eval_batch_size, self._get_eval_sampler)

    def num_examples(self, dataloader: Any) -> int:
        """Return the number of examples behind a loader, estimated from its length where its data set has none."""
        dataset = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)
        return len(dataloader) * int(self.args.per_device_train_batch_size)

    def _get_dataloader(
        self,
        dataset: Any,
        description: str,
        batch_size: int,
        sampler_fn: Callable[[Any], Any] | None = None,
        is_training: bool = False,
        dataloader_key: str | None = None,
    ) -> Any:
        return self.accelerator.prepare(
            self.datamodule.build_loader(
                dataset,
                description=description,
                batch_size=batch_size,
                sampler_fn=sampler_fn,
                is_training=is_training,
            )
        )

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            parameters = list(inspect.signature(unwrap_peft_model(self.model).forward).parameters)
            # A column `label` becomes `labels` in the default collator.
            self._signature_columns = parameters + list({"label", "label_ids", *self.label_names})

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        if not self.args.remove_unused_columns:
            return dataset
        self._set_signature_columns_if_needed()
        return self.datamodule.remove_unused_columns(dataset, description)

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        if not self.args.remove_unused_columns:
            return data_collator
        self._set_signature_columns_if_needed()
        return self.datamodule.removing_collator(data_collator, description)

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device | None = None
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """Fetch the batches of an accumulation window, and count what their losses are means of.

        Args:
            epoch_iterator: Batches of the epoch.
            num_batches: Batches in the window; fewer come at the end of the data.
            device: Where the count is put; by default the device of this process.

        Returns:
            The batches, and the number of label positions in them (``None`` where the model does not ask for it).
        """
        window = list(islice(epoch_iterator, num_batches))
        return window, self._get_num_items_in_batch(window, self.args.device if device is None else device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor | int | None:
        wanted = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        # A loss that knows nothing of the count is a mean of its batch, and is divided by the batches of the window.
        wanted = wanted and not leaves_out(self.compute_loss, "num_items_in_batch")
        if not wanted or not batch_samples or "labels" not in batch_samples[0]:
            return None
        try:
            count: Any = sum(self._counted_labels(batch).ne(-100).sum() for batch in batch_samples)
        except (TypeError, AttributeError):
            # Labels that are no tensors (boxes of object detection) are not counted.
            return None
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            count = self.accelerator.gather(count.to(device)).sum()
        # The division by one makes the count a float, as Hugging Face's is.
        return count.to(device) / 1 if torch.is_tensor(count) else count

    def _counted_labels(self, batch: Mapping[str, Any]) -> Any:
        if "shift_labels" in batch:
            return batch["shift_labels"]
        # A causal loss never predicts the first position.
        return batch["labels"][..., 1:] if self._loss_shifts_labels else batch["labels"]

    def _prepare_input(self, data: Any) -> Any:
        return move_to_device(data, self.args.device)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = self._prepare_input(inputs)
        if len(inputs) == 0:
            self._set_signature_columns_if_needed()
            raise ValueError(
                "A batch came without anything in it; the model takes "
                f"{', '.join(self._signature_columns or [])}: name the data's columns so, or set "
                "`remove_unused_columns=False` and give a `data_collator`."
            )
        return inputs
