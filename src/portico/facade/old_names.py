"""Methods and attributes of the trainer under the names that ``transformers`` 4 had for them."""

from collections.abc import Callable
from typing import Any

from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import EvalLoopOutput, rotate_checkpoints, sort_checkpoints

from portico.contract import Facade
from portico.errors import InputError
from portico.old_spellings.warning import warn_of_old_name


class OldNames(Facade):
    """What scripts and subclasses written for ``transformers`` 4 call on a trainer.

    Attributes:
        do_grad_scaling: Whether a ``training_step`` has to scale its loss: never, ``accelerator.backward`` does it.
        use_apex: Whether apex runs the mixed precision: never.
        use_cuda_amp: Whether the trainer itself casts: never, Lightning's precision plugin does it.
        use_cpu_amp: As ``use_cuda_amp``.
        sharded_ddp: Sharding by fairscale: none.
    """

    do_grad_scaling = False
    use_apex = False
    use_cuda_amp = False
    use_cpu_amp = False
    sharded_ddp = None

    @property
    def tokenizer(self) -> Any:
        """The ``processing_class``."""
        warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
        return self.processing_class

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        warn_of_old_name("Trainer.tokenizer", "Trainer.processing_class")
        self.processing_class = tokenizer

    def prediction_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Run ``evaluation_loop``; a subclass that overrides this sets ``use_legacy_prediction_loop=True``."""
        warn_of_old_name("Trainer.prediction_loop", "Trainer.evaluation_loop")
        return self.evaluation_loop(
            dataloader,
            description,
            prediction_loss_only=prediction_loss_only,
            ignore_keys=ignore_keys,
            metric_key_prefix=metric_key_prefix,
        )

    @property
    def _loop_of_evaluations(self) -> Callable[..., EvalLoopOutput]:
        """The loop that ``evaluate`` and ``predict`` run."""
        wants_old_loop = getattr(self.args, "use_legacy_prediction_loop", False)
        is_overridden = type(self).prediction_loop is not OldNames.prediction_loop
        return self.prediction_loop if wants_old_loop and is_overridden else self.evaluation_loop

    def init_git_repo(self, at_init: bool = False) -> None:
        """Make the repository on the hub; there is no local clone any more."""
        warn_of_old_name("Trainer.init_git_repo", "Trainer.init_hf_repo")
        self.init_hf_repo()

    def is_local_master(self) -> bool:
        """Tell whether this is the first process of its machine."""
        warn_of_old_name("Trainer.is_local_master", "Trainer.is_local_process_zero")
        return self.is_local_process_zero()

    def _nested_gather(self, tensors: Any, name: str | None = None) -> Any:
        return None if tensors is None else self.accelerator.gather(tensors)

    def _pad_across_processes(self, tensor: Any, pad_index: int = -100) -> Any:
        return self.accelerator.pad_across_processes(tensor, dim=1, pad_index=pad_index)

    def _gather_and_numpify(self, tensors: Any, name: str) -> Any:
        return None if tensors is None else nested_numpify(self._nested_gather(tensors, name))

    def _sorted_checkpoints(
        self, output_dir: str | None = None, checkpoint_prefix: str = "checkpoint", use_mtime: bool = False
    ) -> list[str]:
        checkpoints: list[str] = sort_checkpoints(
            output_dir=output_dir or self.args.output_dir,
            checkpoint_prefix=checkpoint_prefix,
            use_mtime=use_mtime,
            best_model_checkpoint=self.state.best_model_checkpoint,
        )
        return checkpoints

    def _rotate_checkpoints(self, use_mtime: bool = False, output_dir: str | None = None) -> None:
        rotate_checkpoints(
            output_dir=output_dir or self.args.output_dir,
            save_total_limit=self.args.save_total_limit,
            best_model_checkpoint=self.state.best_model_checkpoint,
            use_mtime=use_mtime,
        )


def newer_processing_class(processing_class: Any, tokenizer: Any) -> Any:
    """Return what takes the place of ``tokenizer``, the older spelling of ``processing_class``.

    Raises:
        InputError: If both are given and differ.
    """
    if tokenizer is None:
        return processing_class
    warn_of_old_name("tokenizer", "processing_class")
    if processing_class is not None and processing_class is not tokenizer:
        raise InputError(
            "`processing_class` and `tokenizer` are two spellings of one argument, and different objects were given; "
            "give `processing_class` alone."
        )
    return tokenizer
