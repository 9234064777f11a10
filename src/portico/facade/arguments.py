"""Training arguments on their way into the trainer."""

from typing import Any

from portico.accelerator.settings import apply_accelerator_settings
from portico.arguments import TrainingArguments, adopt_arguments
from portico.facade.announcements import announce_without_effect
from portico.facade.number_checks import check_numbers
from portico.facade.preparation import apply_log_level
from portico.facade.requirements import check_requirements
from portico.facade.unsupported import refuse_unsupported
from portico.run_log import logger


def taken_arguments(args: Any) -> Any:
    """Return ``args`` as the trainer uses them: placed by Lightning, checked, with what they set applied.

    Args:
        args: Training arguments of either library; ``None`` for the defaults.

    Raises:
        InputError: If a value cannot be used here, before any work.
        TypeError: If they are no training arguments.
    """
    if args is None:
        logger.info("Without `args` the run writes into `tmp_trainer`.")
        args = TrainingArguments(output_dir="tmp_trainer")
    args = adopt_arguments(args)
    refuse_unsupported(args)
    apply_accelerator_settings(args)
    check_numbers(args)
    apply_log_level(args)
    announce_without_effect(args)
    check_requirements(args)
    return args
