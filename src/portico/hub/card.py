"""The model card (``README.md``) of a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard
from transformers.modelcard import TrainingSummary

if TYPE_CHECKING:
    from portico.contract import Facade

CARD_FILE = "README.md"


def write_model_card(facade: "Facade", tags: str | list[str] | None = None, **facts: Any) -> None:
    """Write the card of what ``facade`` trained into its output folder; tags of a card that is there are kept.

    Args:
        facade: The trainer.
        tags: Tags of the model.
        **facts: What else ``transformers.modelcard.TrainingSummary`` says of a model.
    """
    file = Path(facade.args.output_dir) / CARD_FILE
    earlier = ModelCard.load(file).data if file.is_file() else None
    if earlier is not None and tags is not None and earlier.tags is not None:
        tags = [tags] if isinstance(tags, str) else tags
        tags.extend(tag for tag in earlier.tags if tag not in tags)
    summary = TrainingSummary.from_trainer(facade, tags=tags, **facts)
    file.write_text(summary.to_model_card(), encoding="utf-8")
    if earlier is not None and earlier.get("library_name") == "peft":
        adapted: Any = facade.accelerator.unwrap_model(facade.model)
        adapted.create_or_update_model_card(facade.args.output_dir)
