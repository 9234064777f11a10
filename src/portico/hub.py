"""The Hugging Face hub: repository, model card and uploads of a run."""

import json
import shutil
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard
from transformers import CONFIG_NAME, WEIGHTS_NAME

from portico.arguments import as_transformers_arguments
from portico.checkpoint.writer import save_arguments
from portico.compat import transformers as hf_compat

if TYPE_CHECKING:
    from portico.arguments import TrainingArguments
    from portico.trainer import Trainer

# As in transformers: private files, and checkpoints, which `hub_strategy` decides on.
_NOT_UPLOADED = ["_*", "checkpoint-*"]
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.bin", "adapter_model.safetensors")


def write_model_card(trainer: "Trainer", tags: str | list[str] | None = None, **facts: Any) -> None:
    """Write the model card of ``trainer`` into its output folder; the tags of an existing card are kept.

    ``tags`` and ``facts`` are fields of ``transformers.modelcard.TrainingSummary``.
    """
    file = Path(trainer.args.output_dir) / "README.md"
    earlier = ModelCard.load(file).data if file.is_file() else None
    if earlier is not None and tags is not None and earlier.tags is not None:
        tags = [tags] if isinstance(tags, str) else tags
        tags.extend(tag for tag in earlier.tags if tag not in tags)
    summary = hf_compat.TrainingSummary.from_trainer(trainer, tags=tags, **facts)
    file.write_text(summary.to_model_card(), encoding="utf-8")
    if earlier is not None and earlier.get("library_name") == "peft":
        adapted: Any = trainer.accelerator.unwrap_model(trainer.model)
        adapted.create_or_update_model_card(trainer.args.output_dir)


def quiet_uploads(args: "TrainingArguments") -> AbstractContextManager[None]:
    """Return a context without the hub's progress bars, which would disrupt that of the training."""
    return hf_compat.suppress_progress_bars() if args.push_to_hub else nullcontext()


def create_repository(trainer: "Trainer", token: str | None, private: bool | None) -> None:
    """Create the repository that the run is uploaded to, unless it exists, and store its name on the trainer."""
    args = trainer.args
    name = Path(args.output_dir).absolute().name if args.hub_model_id is None else args.hub_model_id
    repository = hf_compat.hf_api().create_repo(
        name,
        token=args.hub_token if token is None else token,
        private=args.hub_private_repo if private is None else private,
        exist_ok=True,
    )
    trainer.hub_model_id = repository.repo_id
    trainer.push_in_progress = None


def _upload(trainer: "Trainer", folder: str, commit_message: str | None, **options: Any) -> Any:
    """Upload ``folder`` in the background; ``options`` of ``HfApi.upload_folder`` win over the training arguments."""
    args = trainer.args
    defaults = {"token": args.hub_token, "revision": args.hub_revision, "run_as_future": True}
    # The hub's client is typed for literal values of `run_as_future` only.
    hub: Any = hf_compat.hf_api()
    options = {**defaults, **{name: value for name, value in options.items() if value is not None}}
    return hub.upload_folder(
        repo_id=trainer.hub_model_id, folder_path=folder, commit_message=commit_message, **options
    )


def upload_checkpoint(trainer: "Trainer", checkpoint_folder: str) -> None:
    """Start uploading the model of a checkpoint and, depending on ``hub_strategy``, the checkpoint itself.

    While an earlier upload is running, none is started unless ``hub_always_push`` is set.
    """
    args, running = trainer.args, trainer.push_in_progress
    if args.hub_strategy == "end" or not trainer.is_world_process_zero():
        return
    is_busy = running is not None and not running.is_done()
    if is_busy and not args.hub_always_push:
        return
    trainer.callback_handler.on_push_begin(args, trainer.state, trainer.control)
    _gather_run_folder(trainer, Path(checkpoint_folder))
    counts_steps = args.save_strategy == "steps"
    reached = f"step {trainer.state.global_step}" if counts_steps else f"epoch {int(trainer.state.epoch or 0)}"
    message = f"Training in progress, {reached}"
    jobs: Any = [_upload(trainer, args.output_dir, message, ignore_patterns=_NOT_UPLOADED)]
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        place = "last-checkpoint" if args.hub_strategy == "checkpoint" else Path(checkpoint_folder).name
        jobs.append(_upload(trainer, checkpoint_folder, f"{message}, checkpoint", path_in_repo=place))
    if is_busy:
        running.jobs.extend(jobs)
    else:
        trainer.push_in_progress = hf_compat.PushInProgress(jobs)


def _gather_run_folder(trainer: "Trainer", checkpoint: Path) -> None:
    """Copy the model of ``checkpoint`` into the output folder, rather than gather the weights a second time."""
    folder = Path(trainer.args.output_dir)
    for name in _model_files(checkpoint):
        if (checkpoint / name).is_file():
            shutil.copy(checkpoint / name, folder / name)
    if trainer.processing_class is not None:
        trainer.processing_class.save_pretrained(str(folder))
    save_arguments(as_transformers_arguments(trainer.args), str(folder))


def _model_files(checkpoint: Path) -> list[str]:
    names = [CONFIG_NAME, hf_compat.GENERATION_CONFIG_NAME, WEIGHTS_NAME, hf_compat.SAFE_WEIGHTS_NAME]
    for index in (hf_compat.WEIGHTS_INDEX_NAME, hf_compat.SAFE_WEIGHTS_INDEX_NAME):
        if (checkpoint / index).is_file():
            shards = json.loads((checkpoint / index).read_text(encoding="utf-8"))["weight_map"]
            names += [index, *sorted(set(shards.values()))]
    return [*names, *_ADAPTER_FILES] if hf_compat.is_peft_available() else names


def push(
    trainer: "Trainer", commit_message: str | None, card: dict[str, Any], *, private: bool | None, **options: Any
) -> Any:
    """Save the model, write its card and upload the output folder; ``options`` are those of ``upload_folder``."""
    args = trainer.args
    model_name = card.pop("model_name", None)
    if model_name is None and args.should_save:
        model_name = (args.hub_model_id or Path(args.output_dir).name).split("/")[-1]
    if trainer.hub_model_id is None:
        trainer.init_hf_repo(token=options["token"], private=private)
    trainer.save_model(_internal_call=True)
    if not trainer.is_world_process_zero():
        return None
    model_tags: Any = getattr(trainer.model, "model_tags", None)
    if model_tags is not None:
        tags = card.get("tags", [])
        tags = [tags] if isinstance(tags, str) else tags
        card["tags"] = tags + [tag for tag in model_tags if tag not in tags]
    trainer.create_model_card(model_name=model_name, **card)
    trainer._finish_current_push()
    return _upload(trainer, args.output_dir, commit_message, ignore_patterns=_NOT_UPLOADED, **options)
