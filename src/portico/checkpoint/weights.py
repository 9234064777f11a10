"""Write a model's weights as ``from_pretrained`` reads them, and load them; PEFT's adapters come last."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import _IncompatibleKeys
from transformers import WEIGHTS_NAME, PreTrainedModel
from transformers import logging as transformers_logging

from portico.checkpoint.background import BackgroundWriter
from portico.checkpoint.manifest import build_mismatch_error, has_file, reading
from portico.checkpoint.sharded import (
    FSDP_WEIGHTS_FILE,
    accepting_full_tensors,
    find_weight_files,
    load_weight_slices,
    save_weight_shards,
    select_weights,
)
from portico.compat.transformers import (
    ADAPTER_SAFE_WEIGHTS_NAME,
    ADAPTER_WEIGHTS_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    logger,
    unwrap_peft_model,
)
from portico.distributed.model_parallel import full_tensor, gathered_root, is_sharded
from portico.errors import InputError
from portico.trust.disk import replaced, staged_folder
from portico.trust.files import load_tensors

# PEFT updates the card of a model.
_CARD = "README.md"
_SHARD = re.compile(r"model.*-\d{5}-of-\d{5}(\.bin|\.safetensors)*")


def save_weights(
    model: nn.Module,
    unwrapped: nn.Module,
    folder: str,
    *,
    state_dict: dict[str, Any] | None = None,
    is_writer: bool = True,
    background: BackgroundWriter | None = None,
) -> None:
    """Write ``model``, or ``state_dict`` instead of its weights, into the existing ``folder``.

    The configuration is written too, if ``unwrapped``, the model without wrappers, has one. All processes gather a
    sharded model, and the processes with ``is_writer`` write it. ``background``, if given, decides when files are
    written.
    """
    background = background or BackgroundWriter()
    path = Path(folder)
    if state_dict is None and is_sharded(unwrapped):
        if getattr(unwrapped, "peft_config", None):
            _save_sharded_adapters(unwrapped, folder, is_writer=is_writer)
            return
        if is_writer and isinstance(unwrapped, PreTrainedModel):
            # Only the configuration, and first: `save_pretrained` deletes all shards that it has not written.
            _save_pretrained(unwrapped, folder, {})
        tensors = background.copy_state(select_weights(unwrapped))
        background.run(lambda group: save_weight_shards(unwrapped, tensors, path, is_writer=is_writer))
        return
    if isinstance(unwrapped, PreTrainedModel) or has_adapters(unwrapped):
        if state_dict is None and (model is not unwrapped or background.copies):
            state_dict = model.state_dict()
        held = background.copy_state(state_dict)
        background.run(lambda group: _save_pretrained(unwrapped, folder, held))
    else:
        logger.info("The model is not a `PreTrainedModel`, so its weights are saved without a configuration.")
        weights = background.copy_state(model.state_dict() if state_dict is None else state_dict)
        background.run(lambda group: _save_plain(_storable(weights), path / SAFE_WEIGHTS_NAME))


def _save_pretrained(model: nn.Module, folder: str, state_dict: dict[str, Any] | None) -> None:
    # A progress bar over one file would break the progress bar of the training.
    size = _num_bytes(model.state_dict() if state_dict is None else state_dict)
    staged = staged_folder(Path(folder), keeping=[_CARD], weights="model.safetensors", size=size)
    with _without_progress_bars(), _not_gathering(model), staged as staging:
        cast(PreTrainedModel, model).save_pretrained(staging, state_dict=state_dict)
        if isinstance(model, PreTrainedModel):
            _remove_other_shards(Path(folder), staging)


def _remove_other_shards(folder: Path, staging: Path) -> None:
    """Remove shards of weights that ``save_pretrained`` does not replace, as it does in the folder that it gets."""
    for path in folder.iterdir():
        if _SHARD.fullmatch(path.name) and path.is_file() and not (staging / path.name).exists():
            path.unlink()


def _save_plain(weights: dict[str, torch.Tensor], path: Path) -> None:
    with replaced(path, size=_num_bytes(weights)) as staging:
        safetensors.torch.save_file(weights, staging, metadata={"format": "pt"})


def _num_bytes(weights: Mapping[str, Any]) -> int:
    return sum(tensor.nbytes for tensor in weights.values() if isinstance(tensor, torch.Tensor))


def holds_weights(folder: str) -> bool:
    """Return whether ``folder`` holds weights of a model or adapters, as :func:`save_weights` writes them."""
    weights = (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME, FSDP_WEIGHTS_FILE)
    path = Path(folder)
    return any((path / name).is_file() for name in weights) or any(map(_holds_adapter, [path, *path.glob("*/")]))


def load_weights(model: nn.Module, folder: str, *, renames: bool = False) -> _IncompatibleKeys:
    """Load the weights in ``folder`` into ``model``, in place; return missing and unexpected keys.

    ``save_pretrained`` writes the weights of some models, such as ViT, under names of earlier releases, which
    ``from_pretrained`` translates and ``transformers.Trainer`` (5.23) does not. With ``renames`` they are translated.
    """
    path = Path(folder)
    if has_adapters(model):
        with accepting_full_tensors(model):
            load_adapters(model, folder)
        return _IncompatibleKeys(missing_keys=[], unexpected_keys=[])
    result = load_weight_slices(model, path) if is_sharded(model) else _load_by_name(model, path)
    if renames and are_renamed(model, result):
        pretrained = cast(PreTrainedModel, model)
        config = copy(pretrained.config)
        vars(config).pop("distributed_config", None)  # each process translates the whole model, and keeps its part
        with reading(path, into_model=True), torch.random.fork_rng(devices=[]):
            same = type(pretrained).from_pretrained(folder, config=config, dtype=pretrained.dtype)
        with accepting_full_tensors(model):
            model.load_state_dict(same.state_dict())
        return _IncompatibleKeys(missing_keys=[], unexpected_keys=[])
    return result


def materialize(model: nn.Module) -> None:
    """Load each process's part of a sharded model on the meta device from the folder named by its configuration.

    Raises:
        InputError: If the configuration names no folder with weights.
    """
    name = str(getattr(getattr(model, "config", None), "name_or_path", ""))
    if not name or not holds_weights(name):
        raise InputError(
            f"The weights of {type(model).__name__} are on the meta device, without values, and its configuration "
            f"names no folder that has them (`config.name_or_path={name!r}`); make it from "
            "`AutoConfig.from_pretrained(folder)` with a folder that holds a model, or make the model on the CPU."
        )
    warn_about_key_mismatch(model, load_weight_slices(model, Path(name)))


def are_renamed(model: nn.Module, result: _IncompatibleKeys) -> bool:
    """Return whether ``from_pretrained`` may know the missing weights under the names of the unexpected ones."""
    return isinstance(model, PreTrainedModel) and bool(result.missing_keys and result.unexpected_keys)


def _load_by_name(model: nn.Module, path: Path) -> _IncompatibleKeys:
    missing, unexpected = list(model.state_dict()), []
    for file in find_weight_files(path):
        with reading(file):
            is_safe = file.suffix == ".safetensors"
            weights = safetensors.torch.load_file(file) if is_safe else load_tensors(file, map_location="cpu")
        with reading(file, into_model=True), _fitting(model, path):
            result = model.load_state_dict(weights, strict=False)
        absent = set(result.missing_keys)
        missing = [name for name in missing if name in absent]
        unexpected += result.unexpected_keys
    return _IncompatibleKeys(missing, unexpected)


@contextmanager
def _fitting(model: nn.Module, path: Path) -> Iterator[None]:
    """Turn torch's list of all weights whose shapes differ from those in ``path`` into one sentence."""
    try:
        yield
    except RuntimeError as error:
        mismatch = _SIZE_MISMATCH.search(str(error))
        if mismatch is None:
            raise
        what = "`{}` has the shape {} there and {} here".format(*mismatch.groups())
        raise build_mismatch_error(path, "weights", model, what) from None


_SIZE_MISMATCH = re.compile(r"size mismatch for (\S+): copying a param.*?Size\((.*?)\).*?Size\((.*?)\)")


def _storable(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``weights`` as safetensors takes them: contiguous, and without shared memory."""
    stored: dict[str, torch.Tensor] = {}
    storages: set[int] = set()
    for name, tensor in weights.items():
        storage = tensor.untyped_storage().data_ptr()
        is_shared = storage in storages
        stored[name] = tensor.clone(memory_format=torch.contiguous_format) if is_shared else tensor.contiguous()
        storages.add(storage)
    return stored


def warn_about_key_mismatch(model: nn.Module, result: _IncompatibleKeys) -> None:
    """Warn about weights of ``model`` that :func:`load_weights` did not find, and about weights the model lacks."""
    weights = model.state_dict()
    missing = set(result.missing_keys)
    # Tied weights share memory; safetensors stores them once.
    loaded = {_memory(tensor) for name, tensor in weights.items() if name not in missing}
    tied = {name for name in missing if name in weights and _memory(weights[name]) in loaded}
    missing -= tied | set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    if missing:
        logger.warning(f"There were missing keys in the checkpoint model loaded: {sorted(missing)}.")
    if result.unexpected_keys:
        logger.warning(f"There were unexpected keys in the checkpoint model loaded: {sorted(result.unexpected_keys)}.")


def _memory(tensor: torch.Tensor) -> int:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).data_ptr()  # a DTensor's own is 0


@contextmanager
def _not_gathering(model: nn.Module) -> Iterator[None]:
    """Hide from ``save_pretrained`` that transformers has sharded the model, or it would gather all weights."""
    config: Any = getattr(model, "config", None)
    before = getattr(config, "distributed_config", None)
    if before is None:
        yield
        return
    config.distributed_config = None
    try:
        yield
    finally:
        config.distributed_config = before


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    enabled = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            transformers_logging.enable_progress_bar()


def has_adapters(model: nn.Module) -> bool:
    """Return whether ``model`` is a base model inside PEFT's adapters."""
    return unwrap_peft_model(model) is not model


def _save_sharded_adapters(model: Any, folder: str, *, is_writer: bool) -> None:
    """Write the adapters of a sharded model as PEFT does, gathering nothing else; all processes call this.

    Adapters are small enough to be written at once.
    """
    import peft

    tensors: dict[str, torch.Tensor] = model.state_dict()
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    # PEFT computes the embeddings of prompts from the encoder's weights, which are not among the tensors it is given.
    with gathered_root(model):
        chosen = {
            id(tensor)
            for name in model.peft_config
            for tensor in peft.get_peft_model_state_dict(model, state_dict=tensors, adapter_name=name).values()
        }
        held = {
            name: full_tensor(tensor) if name in trained or id(tensor) in chosen else tensor
            for name, tensor in tensors.items()
        }
        if is_writer:
            _save_pretrained(model, folder, held)


def load_adapters(model: Any, folder: str) -> None:
    """Load the adapters in ``folder`` into ``model``; the active one stays trainable.

    PEFT writes the adapter named ``"default"`` into the folder itself, and others into folders of their names.
    """
    active = model.active_adapters[0]
    if len(model.active_adapters) > 1:
        logger.warning(f"Multiple active adapters detected will only consider the first adapter: {active!r}.")
    named = {entry.name: entry for entry in Path(folder).iterdir() if _holds_adapter(Path(folder), f"{entry.name}/")}
    if _holds_adapter(Path(folder)):
        if not named:
            with reading(Path(folder), into_model=True):
                model.load_adapter(folder, active, is_trainable=True)
            return
        named["default"] = Path(folder)
    if not named:
        raise InputError(
            f"{folder} holds no adapter ({ADAPTER_SAFE_WEIGHTS_NAME} or {ADAPTER_WEIGHTS_NAME}), but the model has "
            "adapters of PEFT; set `resume_from_checkpoint` to a checkpoint of such a model, or leave it out."
        )
    for name, path in named.items():
        with reading(path, into_model=True):
            model.load_adapter(str(path), name, is_trainable=name == active)
    model.set_adapter(active)


def _holds_adapter(folder: Path, below: str = "") -> bool:
    return any(has_file(folder, f"{below}{name}") for name in (ADAPTER_SAFE_WEIGHTS_NAME, ADAPTER_WEIGHTS_NAME))
