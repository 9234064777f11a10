"""What a run says of itself, in Hugging Face's words."""

from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset
from transformers.trainer_pt_utils import get_model_param_count
from transformers.trainer_utils import has_length
from transformers.utils import logging as transformers_logging

if TYPE_CHECKING:
    from portico.contract import Facade
    from portico.plan import ResumePoint, RunPlan

# Scripts set the level of the logger `transformers` and hang handlers and filters on it or on `transformers.trainer`;
# under a name of our own, these lines would pass all of them by.
logger = transformers_logging.get_logger("transformers.trainer")


def announce_overruled(facade: "Facade") -> None:
    """Tell which training arguments give way to others, or to the kind of the training set."""
    args = facade.args
    if args.max_steps > 0 and args.num_train_epochs > 0:
        logger.info("`max_steps` ends the training, whatever `num_train_epochs` says.")
    if isinstance(facade.train_dataset, IterableDataset):
        logger.info(
            f"`train_sampling_strategy='{args.train_sampling_strategy}'` has no effect on a data set without indices, "
            "which gives its examples in its own order."
        )


def announce_training(facade: "Facade", plan: "RunPlan", resume_point: "ResumePoint | None") -> None:
    """Tell the counts of a training run, and where it goes on if it is resumed."""
    args, batch_size = facade.args, facade._train_batch_size
    logger.info("***** Running training *****")
    logger.info(f"  Num examples = {plan.num_examples:,}")
    logger.info(f"  Num Epochs = {plan.num_train_epochs:,}")
    logger.info(f"  Num update steps per epoch = {plan.num_update_steps_per_epoch:,}")
    logger.info(f"  Instantaneous batch size per device = {args.per_device_train_batch_size:,}")
    if batch_size != args.per_device_train_batch_size:
        logger.info(f"  Batch size of this run = {batch_size:,}")
    logger.info(
        f"  Total train batch size (w. parallel, distributed & accumulation) = {plan.total_train_batch_size:,}"
    )
    logger.info(f"  Gradient Accumulation steps = {args.gradient_accumulation_steps}")
    logger.info(f"  Total optimization steps = {plan.max_steps:,}")
    logger.info(
        f"  Number of trainable parameters = {get_model_param_count(facade.model_wrapped, trainable_only=True):,}"
    )
    if resume_point is not None:
        _announce_resuming(facade, resume_point)


def _announce_resuming(facade: "Facade", point: "ResumePoint") -> None:
    logger.info(
        f"  Resuming training from checkpoint with epoch {point.epoch} and global step {facade.state.global_step}"
    )
    if not facade.args.ignore_data_skip:
        logger.info(
            f"  Skipping {point.epoch} epochs and {point.num_batches_to_skip} batches that the checkpoint has seen"
        )


def announce_evaluation(facade: "Facade", loader: Any, description: str, batch_size: int) -> None:
    """Tell the counts of an evaluation or a prediction.

    Args:
        facade: The trainer.
        loader: Batches.
        description: ``"Evaluation"`` or ``"Prediction"``.
        batch_size: Examples in a batch.
    """
    logger.info(f"\n***** Running {description} *****")
    if has_length(loader):
        logger.info(f"  Num examples = {facade.num_examples(loader)}")
    else:
        logger.info("  Num examples: Unknown")
    logger.info(f"  Batch size = {batch_size}")
