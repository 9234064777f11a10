"""The files of DeepSpeed's engine in a checkpoint: ``latest`` names the folder ``global_stepN``, which has the states.

The engine writes them as under transformers, and reads them as data: DeepSpeed's own reader unpickles them in full.
"""

import re
from pathlib import Path
from typing import Any

from torch import nn

from portico.checkpoint.manifest import has_file, reading
from portico.checkpoint.weights import has_adapters
from portico.errors import InputError, printable
from portico.trust.disk import read_bytes
from portico.trust.files import load_engine_states

LATEST_FILE = "latest"
_TAG = re.compile(r"global_step\d{1,18}")


def save_engine(engine: Any, folder: Path, model: nn.Module) -> None:
    """Write the states of ``engine`` into ``folder``; all processes call this."""
    engine.save_checkpoint(str(folder), exclude_frozen_parameters=has_adapters(model))


def load_engine(engine: Any, folder: Path, model: nn.Module) -> None:
    """Load weights, optimizer and the engine's schedule from ``folder``; all processes call this.

    Raises:
        InputError: If ``folder`` has no such files, or files of another stage, precision or number of processes.
    """
    if not has_file(folder, LATEST_FILE):
        raise InputError(
            f"{folder} was not written under `deepspeed`: it has no file {LATEST_FILE!r}; leave `deepspeed` out to "
            "resume it, or load its weights with `from_pretrained` and leave `resume_from_checkpoint` out."
        )
    tag = read_bytes(folder / LATEST_FILE).decode(errors="replace").strip()
    if not _TAG.fullmatch(tag) or not (folder / tag).is_dir():
        raise InputError(
            f"{folder / LATEST_FILE} names {printable(tag[:100])!r}, and no folder `global_stepN` next to it; restore "
            "the file."
        )
    _refuse_other_files(engine, folder / tag)
    _read_as_data(engine)
    with reading(folder / tag):
        engine.load_checkpoint(str(folder), tag=tag, load_module_strict=not has_adapters(model))


def lacks_weights(engine: Any, model: nn.Module) -> bool:
    """Return whether weights are spread and not gathered: ``stage3_gather_16bit_weights_on_model_save`` is not set."""
    is_spread = engine.zero_optimization_partition_weights()
    return is_spread and not (has_adapters(model) or engine.zero_gather_16bit_weights_on_model_save())


def gather_weights(engine: Any, model: nn.Module) -> dict[str, Any] | None:
    """Return the weights of ``model`` where each process has a part of them, ``None`` where each has all.

    The first process gets them, and others an empty dict. All processes call this.
    """
    if lacks_weights(engine, model):
        return {}
    if not engine.zero_optimization_partition_weights():
        return None
    return engine._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters=has_adapters(model)) or {}


def _refuse_other_files(engine: Any, states: Path) -> None:
    """Raise ``InputError`` if the states in a folder are not of the parts that ``engine`` has."""
    files = sorted(path.name for path in states.glob("*_states.pt"))
    optimizers = [name for name in files if name.endswith("_optim_states.pt")]
    is_spread = any(name.startswith("zero_") and name.endswith("_model_states.pt") for name in files)
    is_bf16 = any(name.startswith("bf16_") for name in optimizers)
    saved = (3 if is_spread else 1 if optimizers else 0, is_bf16, len(optimizers))
    stage = engine.zero_optimization_stage()
    num_parts = engine.dp_world_size if stage else 0
    present = (3 if stage == 3 else 1 if stage else 0, bool(stage and engine.bfloat16_enabled()), num_parts)
    if saved != present:
        stages = {0: "0", 1: "1 or 2", 3: "3"}

        def describe(kind: tuple[int, bool, int]) -> str:
            return f"stage {stages[kind[0]]}{' in bf16' if kind[1] else ''}{f' in {kind[2]} parts' if kind[0] else ''}"

        raise InputError(
            f"{states} holds states of {describe(saved)}, and the run has {describe(present)}; resume with the "
            "DeepSpeed configuration and the number of processes that it was saved with."
        )


def _read_as_data(engine: Any) -> None:
    from deepspeed.runtime.checkpoint_engine.torch_checkpoint_engine import TorchCheckpointEngine

    class ReadsData(TorchCheckpointEngine):
        def load(self, path: str, map_location: Any = None) -> Any:
            return load_engine_states(Path(path), map_location=map_location)

    reader = ReadsData()
    reader.zipfile_serialization = engine.checkpoint_serialization_enabled()
    engine.checkpoint_engine = reader
