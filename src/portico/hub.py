"""The Hugging Face hub: pretrained models; repository, model card and uploads of a run."""

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from huggingface_hub import ModelCard, get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.utils.tqdm import disable_progress_bars, enable_progress_bars
from transformers import CONFIG_NAME, WEIGHTS_NAME

from portico.arguments import build_transformers_arguments
from portico.checkpoint.manifest import refuse_oversized_model, refuse_unreadable
from portico.checkpoint.writer import save_arguments
from portico.compat import transformers as hf_compat
from portico.errors import InputError, InputRuntimeError, loading_pretrained, reason_of
from portico.trust.disk import copy_file, is_small_file, read_bytes, read_text, staged_folder, write_text
from portico.trust.names import is_from_folder, refuse_download, refuse_outside

if TYPE_CHECKING:
    from torch import nn
    from transformers import TrainerState

    from portico.arguments import TrainingArguments
    from portico.compat.annotations import ProcessingClass

# As in transformers: private files, and checkpoints, which `hub_strategy` decides on.
_NOT_UPLOADED = ["_*", "checkpoint-*"]
_CARD = "README.md"
_ADAPTER_CONFIG = "adapter_config.json"
_ADAPTER_FILES = (_ADAPTER_CONFIG, "adapter_model.bin", "adapter_model.safetensors")


def refuse_missing_model(setting: str, name: str) -> None:
    """Refuse a name of neither a folder nor a model of the hub, before the half minute in which others retry.

    Raises:
        InputError: If there is no such folder or model, if the hub cannot be reached, or if somebody else's
            configuration names a model of the hub.
    """
    advice = "set it to a folder written by `save_pretrained`, such as the folder of a run, or to a name on the hub."
    if Path(name).is_dir():
        refuse_outside(name, setting)
        if any(Path(name, file_name).is_file() for file_name in (CONFIG_NAME, _ADAPTER_CONFIG)):
            _refuse_base_model(setting, Path(name, _ADAPTER_CONFIG))
            return
        raise InputError(f"`{setting}={name}` contains no model ({CONFIG_NAME} is missing); {advice}")
    # A hub name has at most one slash and starts with a letter or digit.
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise InputError(f"`{setting}={name}` does not exist; {advice}")
    refuse_download(setting, name)
    try:
        if not isinstance(try_to_load_from_cache(name, CONFIG_NAME), str):
            get_hf_file_metadata(hf_hub_url(name, CONFIG_NAME))
    except EntryNotFoundError:
        pass  # the model may consist of adapters
    except Exception as error:  # of the hub, or of the HTTP client that it uses, which differs between its releases
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status is None or status < HTTPStatus.TOO_MANY_REQUESTS:  # a busy hub answers the next attempt
            raise InputError(
                f"`{setting}={name}` is not a folder, and was not found on the hub ({reason_of(error)}); {advice}"
            ) from error


def _refuse_base_model(setting: str, config: Path) -> None:
    """Judge the model that adapters of somebody else's run belong to, which is loaded with them."""
    if config.is_file() and is_from_folder():
        base = None
        with suppress(OSError, ValueError, AttributeError, RecursionError):  # which loading it explains
            base = json.loads(read_text(config)).get("base_model_name_or_path")
        if base:
            refuse_download(f"{setting}/{config.name}: base_model_name_or_path", str(base))


@contextmanager
def loading_model(setting: str, name: str, what: str, advice: str) -> Iterator[None]:
    """Load the model ``name`` in the block; the error for a missing, hostile or damaged one names ``setting``."""
    refuse_missing_model(setting, name)
    with loading_pretrained(f"`{setting}={name}` cannot be loaded as {what}", advice):
        refuse_oversized_model(name)
        try:
            yield
        except Exception:  # safetensors says that a file is missing which it may not read
            refuse_unreadable(Path(name))
            raise


def _card_in(folder: str) -> ModelCard | None:
    """Return the model card in a folder; None if there is none, or it cannot be read: a new one will replace it."""
    file = Path(folder) / _CARD
    try:
        return ModelCard(read_bytes(file).decode("utf-8-sig")) if is_small_file(file) else None
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
        return None


def add_earlier_tags(folder: str, tags: str | list[str] | None) -> str | list[str] | None:
    """Return ``tags``, if given, followed by the tags of an existing model card in ``folder``."""
    card = _card_in(folder)
    earlier = None if card is None else card.data.get("tags")
    if not isinstance(earlier, list) or tags is None:
        return tags
    tags = [tags] if isinstance(tags, str) else tags
    return [*tags, *(tag for tag in earlier if tag not in tags)]


def write_model_card(summary: hf_compat.TrainingSummary, folder: str, model: "nn.Module") -> None:
    """Write the model card of a run into ``folder``; PEFT then updates the card of a PEFT model."""
    file = Path(folder) / _CARD
    card = _card_in(folder)
    is_of_peft = card is not None and card.data.get("library_name") == "peft"
    write_text(file, summary.to_model_card())
    if is_of_peft:
        adapted: Any = model
        with staged_folder(file.parent, keeping=[file.name]) as staging:
            adapted.create_or_update_model_card(str(staging))


def card_of_model(card: Mapping[str, Any], args: "TrainingArguments", model: "nn.Module") -> dict[str, Any]:
    """Return the arguments of a model card, with the name of the repository and the tags of the model added."""
    complete = dict(card)
    if complete.get("model_name") is None:
        complete["model_name"] = (args.hub_model_id or Path(args.output_dir).name).split("/")[-1]
    model_tags: Any = getattr(model, "model_tags", None)
    if model_tags is not None:
        tags = complete.get("tags", [])
        tags = [tags] if isinstance(tags, str) else tags
        complete["tags"] = tags + [tag for tag in model_tags if tag not in tags]
    return complete


def quiet_uploads(args: "TrainingArguments") -> AbstractContextManager[None]:
    """Return a context without the hub's progress bars, which would disrupt the progress bar of training."""
    return _without_progress_bars() if args.push_to_hub else nullcontext()


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def refuse_without_login(args: "TrainingArguments") -> None:
    """Refuse a run that could not be uploaded: unlike :func:`create_repository`, this leaves nothing on the hub."""
    with _uploading_to(_name_of_repository(args)):
        hf_compat.hf_api().whoami(token=args.hub_token)


def create_repository(args: "TrainingArguments", token: str | None = None, private: bool | None = None) -> str:
    """Create the repository that the run is uploaded to, unless it exists, and return its full name.

    Raises:
        InputRuntimeError: If the hub cannot be reached, or refuses.
    """
    name = _name_of_repository(args)
    with _uploading_to(name):
        repository = hf_compat.hf_api().create_repo(
            name,
            token=args.hub_token if token is None else token,
            private=args.hub_private_repo if private is None else private,
            exist_ok=True,
        )
    return str(repository.repo_id)


def _name_of_repository(args: "TrainingArguments") -> str:
    return Path(args.output_dir).absolute().name if args.hub_model_id is None else args.hub_model_id


@contextmanager
def _uploading_to(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of the hub, or of the HTTP client that it uses, which differs between its releases
        raise InputRuntimeError(
            f"The repository `{name}` cannot be made on the hub ({reason_of(error)}); train with `push_to_hub=False` "
            "and call `trainer.push_to_hub()` later, or log in with `hf auth login`."
        ) from error


def upload_run(args: "TrainingArguments", repository: str, commit_message: str | None, **options: object) -> Any:
    """Upload the output folder, without checkpoints and private files; ``options`` go to ``upload_folder``."""
    return _upload(args, repository, args.output_dir, commit_message, ignore_patterns=_NOT_UPLOADED, **options)


def _upload(
    args: "TrainingArguments", repository: str, folder: str, commit_message: str | None, **options: object
) -> Any:
    """Upload ``folder`` in the background; ``options`` of ``HfApi.upload_folder`` override the training arguments."""
    defaults = {"token": args.hub_token, "revision": args.hub_revision, "run_as_future": True}
    # The hub's client is typed for literal values of `run_as_future` only.
    hub: Any = hf_compat.hf_api()
    options = {**defaults, **{name: value for name, value in options.items() if value is not None}}
    return hub.upload_folder(repo_id=repository, folder_path=folder, commit_message=commit_message, **options)


def upload_checkpoint(
    args: "TrainingArguments",
    repository: str,
    checkpoint_folder: str,
    state: "TrainerState",
    processing_class: "ProcessingClass | None",
) -> list[Any]:
    """Start uploading the model of a checkpoint and, depending on ``hub_strategy``, the checkpoint itself.

    Returns:
        A future for each upload.
    """
    _gather_run_folder(args, Path(checkpoint_folder), processing_class)
    reached = f"step {state.global_step}" if args.save_strategy == "steps" else f"epoch {int(state.epoch or 0)}"
    message = f"Training in progress, {reached}"
    jobs = [upload_run(args, repository, message)]
    if args.hub_strategy in ("checkpoint", "all_checkpoints"):
        place = "last-checkpoint" if args.hub_strategy == "checkpoint" else Path(checkpoint_folder).name
        jobs.append(_upload(args, repository, checkpoint_folder, f"{message}, checkpoint", path_in_repo=place))
    return jobs


def _gather_run_folder(
    args: "TrainingArguments", checkpoint: Path, processing_class: "ProcessingClass | None"
) -> None:
    """Copy the model of ``checkpoint`` into the output folder, rather than gather the weights a second time."""
    folder = Path(args.output_dir)
    for name in _model_files(checkpoint):
        if (checkpoint / name).is_file():
            copy_file(checkpoint / name, folder / name)
    if processing_class is not None:
        with staged_folder(folder) as staging:
            processing_class.save_pretrained(str(staging))
    save_arguments(build_transformers_arguments(args), str(folder))


def _model_files(checkpoint: Path) -> list[str]:
    names = [CONFIG_NAME, hf_compat.GENERATION_CONFIG_NAME, WEIGHTS_NAME, hf_compat.SAFE_WEIGHTS_NAME]
    for index in (hf_compat.WEIGHTS_INDEX_NAME, hf_compat.SAFE_WEIGHTS_INDEX_NAME):
        if (checkpoint / index).is_file():
            shards = json.loads(read_text(checkpoint / index))["weight_map"]
            names += [index, *sorted(set(shards.values()))]
    return [*names, *_ADAPTER_FILES] if hf_compat.is_peft_available() else names
