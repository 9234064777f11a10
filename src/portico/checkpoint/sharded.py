"""Weights and optimizer of a sharded model: written shard by shard, read slice by slice.

The weights are safetensors files that ``from_pretrained`` reads. The optimizer's state is a folder of
``torch.distributed.checkpoint``, keyed by parameter name, so that any number of processes can read it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from huggingface_hub import split_state_dict_into_shards_factory
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.nn.modules.module import _IncompatibleKeys
from transformers import WEIGHTS_NAME, PreTrainedModel

from portico.checkpoint.manifest import (
    MANIFEST_FILE,
    build_mismatch_error,
    has_file,
    list_shards,
    reading,
    steps_of_checkpoints,
)
from portico.compat import transformers as hf_compat
from portico.compat.transformers import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME
from portico.distributed.model_parallel import free_full_weights, full_tensor, is_empty, is_sharded
from portico.errors import InputError
from portico.trust.disk import replaced, write_text
from portico.trust.files import ShardReader, load_tensors, read_shards

OPTIMIZER_FOLDER = "optimizer_0"
# What `transformers.Trainer` writes under FSDP: files with `state_dict_type="FULL_STATE_DICT"`, and the folder with
# "SHARDED_STATE_DICT".
FSDP_WEIGHTS_FILE = "pytorch_model_fsdp.bin"
FSDP_WEIGHTS_FOLDER = "pytorch_model_fsdp_0"
FSDP_OPTIMIZER_FILE = "optimizer.bin"
MAX_SHARD_SIZE = "5GB"
_Optimizer = torch.optim.Optimizer


# ---- Weights ----


def save_weight_shards(
    model: nn.Module, tensors: Mapping[str, torch.Tensor], folder: Path, *, is_writer: bool
) -> None:
    """Write the :func:`select_weights` of ``model`` into ``folder``, gathering a file of at most 5 GB at a time.

    All processes call this. Writers (``is_writer``) hold one file in memory at a time, other processes one tensor.
    """
    plan = split_state_dict_into_shards_factory(
        dict(tensors),
        get_storage_size=lambda tensor: tensor.numel() * tensor.element_size(),
        get_storage_id=lambda tensor: None,
        filename_pattern=SAFE_WEIGHTS_NAME.replace(".", "{suffix}."),
        max_shard_size=MAX_SHARD_SIZE,
    )
    files: dict[str, str] = {}
    size = 0
    for file, names in plan.filename_to_tensors.items():
        gathered: dict[str, torch.Tensor] = {}
        for name in names:
            tensor = full_tensor(tensors[name].detach())
            if is_writer:
                gathered[name] = tensor.cpu().contiguous()
            del tensor
        if not is_writer:
            continue
        if isinstance(model, PreTrainedModel):
            # One file at a time, as transformers does for weights that are offloaded to a disk.
            gathered = hf_compat.revert_weight_conversion(model, gathered)
        with replaced(folder / file) as staging:
            save_file(gathered, staging, metadata={"format": "pt"})
        files |= dict.fromkeys(gathered, file)
        size += sum(tensor.nbytes for tensor in gathered.values())
    if is_writer and plan.is_sharded:
        count = sum(parameter.numel() for parameter in model.parameters())
        index = {"metadata": {"total_parameters": count, "total_size": size}, "weight_map": files}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        write_text(folder / SAFE_WEIGHTS_INDEX_NAME, text)


def select_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors, still sharded, that are stored as weights; of tied tensors only the first."""
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or ())
    left_out |= set(getattr(model, "all_tied_weights_keys", None) or ())
    return {name: tensor for name, tensor in model.state_dict().items() if name not in left_out}


def load_weight_slices(model: nn.Module, folder: Path) -> _IncompatibleKeys:
    """Load each process's part of the weights in ``folder`` into ``model``; return missing and unexpected keys.

    Weights on the meta device get memory first. ``InputError`` is raised for weights of another model.
    """
    was_empty = is_empty(model)
    if was_empty:
        _allocate(model)
    present = model.state_dict()
    if has_file(folder, f"{FSDP_WEIGHTS_FOLDER}/.metadata"):
        with reading(folder / FSDP_WEIGHTS_FOLDER, into_model=True):
            read_shards(
                {f"model.{name}": tensor for name, tensor in present.items()},
                _open_shards(folder, FSDP_WEIGHTS_FOLDER),
            )
        return _IncompatibleKeys(missing_keys=[], unexpected_keys=[])
    stored = {key: weight for file in find_weight_files(folder) for key, weight in _read_weights(file).items()}
    missing = [name for name in present if name not in stored]
    unexpected = [name for name in stored if name not in present]
    wrong = [name for name in present if name in stored and stored[name].shape != list(present[name].shape)]
    if wrong or len(missing) == len(present):
        what = "none of its weights is there"
        if wrong:
            shapes = f"{stored[wrong[0]].shape} there and {list(present[wrong[0]].shape)} here"
            what = f"`{wrong[0]}` has the shape {shapes}"
        raise build_mismatch_error(folder, "weights", model, what)
    with torch.no_grad(), reading(folder, into_model=True):
        for name, tensor in present.items():
            if name in stored:
                target = tensor.to_local() if isinstance(tensor, DTensor) else tensor
                target.copy_(stored[name].part_for(tensor))
    if was_empty and isinstance(model, PreTrainedModel):
        _initialise_rest(model, present.keys() - set(missing))
        tied = set(model.all_tied_weights_keys)
        missing = [name for name in missing if name not in tied]
    return _IncompatibleKeys(missing_keys=missing, unexpected_keys=unexpected)


@contextmanager
def accepting_full_tensors(model: nn.Module) -> Iterator[None]:
    """Inside the block, let ``load_state_dict`` of sharded modules take full tensors: each process keeps its part."""

    def cut(module: nn.Module, state_dict: dict[str, Any], prefix: str, *options: object) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            if (key := prefix + name) in state_dict:
                state_dict[key] = _shard_like(parameter, state_dict[key])

    hooks = [module.register_load_state_dict_pre_hook(cut) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _allocate(model: nn.Module) -> None:
    meshes = [parameter.device_mesh for parameter in model.parameters() if isinstance(parameter, DTensor)]
    kind = meshes[0].device_type
    model.to_empty(
        device=torch.device("cpu") if kind == "cpu" else torch.device(kind, torch.accelerator.current_device_index())
    )
    if isinstance(model, PreTrainedModel):
        model.tie_weights(recompute_mapping=False)


def _initialise_rest(model: PreTrainedModel, loaded: set[str]) -> None:
    """Initialise the tensors that are in no file, for example tables of positions, as ``from_pretrained`` does."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        tensor._is_hf_initialized = name in loaded or name in model.all_tied_weights_keys
    model.initialize_weights()


@dataclass(frozen=True)
class _StoredWeight:
    """A weight in a file: a tensor that is read when it is used, or a name in a file of safetensors."""

    shape: list[int]
    source: torch.Tensor | Path
    name: str

    def part_for(self, like: torch.Tensor) -> torch.Tensor:
        """Return this process's part of the weight, sharded as ``like`` is; no other part is read."""
        if isinstance(self.source, torch.Tensor):
            return _take_part(like, self.source)
        # Opened for each weight: what has been read of a file is resident until it is closed.
        with safe_open(self.source, framework="pt") as opened:
            return _take_part(like, opened.get_slice(self.name))


def find_weight_files(folder: Path) -> list[Path]:
    """Return the files of a checkpoint that hold the weights of its model: one, or shards.

    Raises:
        InputError: If there are none, or an index of shards is damaged.
    """
    for name in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME, FSDP_WEIGHTS_FILE):
        if has_file(folder, name):
            return [folder / name]
    for name in (SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_INDEX_NAME):
        if has_file(folder, name):
            with reading(folder / name):
                return list_shards(folder / name)
    steps = steps_of_checkpoints(folder)
    known = f", for example {str(max(steps, key=lambda name: steps[name]))!r}" if steps else ""
    what = "it holds no" if folder.is_dir() else "there is no such folder, and so no"
    raise InputError(
        f"Can't find a valid checkpoint at {folder}: {what} {SAFE_WEIGHTS_NAME} or {WEIGHTS_NAME}; set "
        f"`resume_from_checkpoint` to a `checkpoint-N` folder of an earlier run{known}, or leave it out."
    )


def _read_weights(file: Path) -> dict[str, _StoredWeight]:
    with reading(file):
        if file.suffix != ".safetensors":
            tensors = load_tensors(file, map_location="cpu", mmap=True)
            return {name: _StoredWeight(list(tensor.shape), tensor, name) for name, tensor in tensors.items()}
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return {name: _StoredWeight(opened.get_slice(name).get_shape(), file, name) for name in names}


def _take_part(like: torch.Tensor, source: Any) -> torch.Tensor:
    """Return this process's part of ``source``, a full tensor or a slice of a file, sharded as ``like`` is."""
    if isinstance(like, DTensor):
        return hf_compat.shard_operation(like).shard_tensor(source)
    return source if isinstance(source, torch.Tensor) else source[...]


# ---- The optimizer ----


def save_optimizer_shards(state: dict[str, Any], folder: Path, group: dist.ProcessGroup | None = None) -> None:
    """Write each process's part of the state from :func:`optimizer_by_name`; all processes of ``group`` call this."""
    save({"optimizer": state}, checkpoint_id=folder / OPTIMIZER_FOLDER, process_group=group)


def optimizer_by_name(model: nn.Module, optimizer: _Optimizer) -> dict[str, Any]:
    """Return state and options of every parameter under ``state.NAME.KEY`` and ``param_groups.NAME.KEY``.

    These are the keys of ``transformers.distributed.save_optimizer_distributed``.
    """
    names = _name_parameters(model)
    saved = optimizer.state_dict()
    flat: dict[str, Any] = {}
    for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        options = {key: value for key, value in group.items() if key != "params"}
        for index, parameter in zip(group["params"], own["params"], strict=True):
            name = names.get(parameter, f"parameters.{index}")
            flat.update({f"param_groups.{name}.{key}": value for key, value in options.items()})
            state = saved["state"].get(index, {})
            flat.update({f"state.{name}.{key}": _make_contiguous(value) for key, value in state.items()})
    return flat


def find_named_optimizer(folder: Path, model: nn.Module) -> Path | None:
    """Return the file or folder in ``folder`` with an optimizer's state by the names of the parameters of ``model``.

    Shards that no manifest lists are looked for by a sharded model alone, which writes them.
    """
    if has_file(folder, FSDP_OPTIMIZER_FILE):
        return folder / FSDP_OPTIMIZER_FILE
    can_have_shards = is_sharded(model) or (folder / MANIFEST_FILE).is_file()
    has_shards = can_have_shards and has_file(folder, f"{OPTIMIZER_FOLDER}/.metadata")
    return folder / OPTIMIZER_FOLDER if has_shards else None


def read_named_optimizer(model: nn.Module, optimizer: _Optimizer, folder: Path) -> dict[str, Any]:
    """Return the state at :func:`find_named_optimizer` in ``folder``, as ``optimizer.load_state_dict`` takes it."""
    names = _name_parameters(model)
    parameters = {
        names[param]: param for group in optimizer.param_groups for param in group["params"] if param in names
    }
    if has_file(folder, FSDP_OPTIMIZER_FILE):
        saved = load_tensors(folder / FSDP_OPTIMIZER_FILE, map_location="cpu", mmap=True)
        options = {name: group for group in saved["param_groups"] for name in group["params"]}
        _check_names(model, parameters, saved["state"], options, folder)
        return _build_state_dict(optimizer, names, saved["state"], options)
    reader = _open_shards(folder, OPTIMIZER_FOLDER)
    wanted: dict[str, Any] = {}
    owners: set[str] = set()
    for key, stored in reader.read_metadata().state_dict_metadata.items():
        section, _, rest = key.removeprefix("optimizer.").partition(".")
        owner = rest.rpartition(".")[0]
        owners.update([owner] * (section == "state"))
        # transformers' `fsdp` keeps the options of a group under its number, and its `params` are names.
        if owner in parameters or (section == "param_groups" and owner.isdigit()):
            wanted[key] = _make_template(stored, parameters.get(owner))
    read_shards(wanted, reader)
    found: dict[str, dict[str, dict[str, Any]]] = {"state": {}, "param_groups": {}}
    for key, value in wanted.items():
        section, _, rest = key.removeprefix("optimizer.").partition(".")
        name, _, entry = rest.rpartition(".")
        found[section].setdefault(name, {})[entry] = value
    for group in list(found["param_groups"].values()):
        found["param_groups"].update(dict.fromkeys(group.get("params", ()), group))
    _check_names(model, parameters, owners, found["param_groups"], folder)
    return _build_state_dict(optimizer, names, found["state"], found["param_groups"])


def _check_names(
    model: nn.Module, present: Iterable[str], saved: Iterable[str], options: Mapping[str, Any], folder: Path
) -> None:
    """Raise ``InputError`` unless ``folder`` has ``options`` of the parameters that are ``present`` and no others."""
    missing = [name for name in present if name not in options]
    others = sorted(name for name in set(saved) - set(present) if not name.startswith("parameters."))
    if missing or others:
        what = f"`{missing[0]}` is missing there" if missing else f"`{others[0]}` is trained only there"
        raise build_mismatch_error(folder, "optimizer", model, what)


def shard_optimizer_state(
    model: nn.Module, optimizer: _Optimizer, saved: Mapping[str, Any], folder: Path
) -> dict[str, Any]:
    """Return this process's part of the full state of an optimizer, ``saved`` in ``folder`` without sharding."""
    names = _name_parameters(model)
    order = {parameter: place for place, parameter in enumerate(names)}
    groups = [list(group["params"]) for group in optimizer.param_groups if group["params"]]
    sizes = [len(group["params"]) for group in saved["param_groups"]]
    # Here a group is split by the way in which its parameters are sharded; the parts follow each other.
    merged: list[list[Any]] = []
    for size in sizes:
        merged.append([])
        while groups and len(merged[-1]) < size:
            merged[-1] += groups.pop(0)
    if [len(group) for group in merged] != sizes or groups:
        present = [len(group["params"]) for group in optimizer.param_groups]
        raise build_mismatch_error(folder, "optimizer", model, f"it has groups of {sizes} parameters, not {present}")
    state = {}
    options = {}
    for group, own in zip(saved["param_groups"], merged, strict=True):
        for index, parameter in zip(group["params"], sorted(own, key=order.__getitem__), strict=True):
            state[names[parameter]] = saved["state"].get(index, {})
            options[names[parameter]] = group
    return _build_state_dict(optimizer, names, state, options)


def _name_parameters(model: nn.Module) -> dict[torch.Tensor, str]:
    free_full_weights(model)
    return {parameter: name for name, parameter in model.named_parameters()}


def _build_state_dict(
    optimizer: _Optimizer, names: Mapping[Any, str], state: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return ``state`` and ``options``, both by parameter name, in the form of ``optimizer.state_dict()``.

    Of each tensor it holds the part of this process.
    """
    present = optimizer.state_dict()
    for group, own in zip(present["param_groups"], optimizer.param_groups, strict=True):
        indices = group["params"]
        for index, parameter in zip(indices, own["params"], strict=True):
            name = names.get(parameter, f"parameters.{index}")
            if name not in options:
                raise ValueError(f"`{name}` is missing")
            entries = state.get(name, {})
            present["state"][index] = {key: _shard_like(parameter, value) for key, value in entries.items()}
            if not entries:
                del present["state"][index]
            # Options of this optimizer are dropped, so that an option missing in the checkpoint is noticed there.
            saved = {key: value for key, value in options[name].items() if key != "params"}
            group.clear()
            group.update(saved, params=indices)
    return present


def _shard_like(parameter: torch.Tensor, value: Any) -> Any:
    """Return ``value`` sharded as ``parameter`` is; another shape, such as Adam's step count, is returned as it is."""
    if not isinstance(parameter, DTensor) or not isinstance(value, torch.Tensor) or value.shape != parameter.shape:
        return value
    if isinstance(value, DTensor):
        return value.redistribute(placements=parameter.placements)
    part = hf_compat.shard_operation(parameter).shard_tensor(value).contiguous()
    return DTensor.from_local(
        part.to(parameter.to_local().device),
        parameter.device_mesh,
        parameter.placements,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _open_shards(folder: Path, name: str) -> ShardReader:
    """Return the reader of a folder of shards in a checkpoint, all of which are files of the checkpoint.

    Raises:
        ValueError: If its table of contents names another file.
    """
    reader = ShardReader(folder / name)
    files = {str(place.relative_path) for place in reader.read_metadata().storage_data.values()}
    for file in sorted(files):
        if Path(file).name != file or not has_file(folder, f"{name}/{file}"):
            raise ValueError(f"it names the file {file[:100]!r}, which is not in the checkpoint")
    return reader


def _make_template(stored: object, parameter: torch.Tensor | None) -> Any:
    if not isinstance(stored, TensorStorageMetadata):
        return None
    dtype = stored.properties.dtype
    if parameter is not None and stored.size == parameter.shape:
        return _make_contiguous(torch.empty_like(parameter, dtype=dtype, requires_grad=False))
    return torch.empty(stored.size, dtype=dtype)


def _make_contiguous(value: Any) -> Any:
    """Reshard a tensor that is sharded twice along one dimension, so that each process has one contiguous part.

    ``torch.distributed.checkpoint`` describes a process's part by its offset and size, which FSDP2 over tensor
    parallelism does not have (`_StridedShard`).
    """
    if not isinstance(value, DTensor) or all(place.is_shard() or place.is_replicate() for place in value.placements):
        return value
    pieces: list[Any] = list(value.placements)
    return value.redistribute(
        placements=[place if isinstance(place, Replicate) else Shard(place.dim) for place in pieces]
    )
