"""Where files are opened that could hold code; no other module unpickles.

What comes from elsewhere is read as data: tensors by ``torch.load(weights_only=True)``, which other modules call too,
the shards of ``torch.distributed.checkpoint`` by :func:`read_shards`, YAML by :func:`plain_yaml`. What is unpickled in
full has been written by this run itself, or is named by the user.
"""

import io
import itertools
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError as UnpicklingError
from typing import Any

import torch
import yaml
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import ReadItem
from torch.distributed.checkpoint.state_dict_loader import load
from typing_extensions import override

from portico.errors import MissingPackageError
from portico.trust.names import refuse_in_folder

# ---- What this run has written itself ----


def pickled(value: object) -> bytes:
    """Return what :func:`unpickled` reads in another process of this run."""
    return pickle.dumps(value)


def unpickled(content: bytes) -> Any:
    """Return what a process of this run has sent: a folder that only this user can read has held it since."""
    return pickle.loads(content)


def load_own(file: Path, *, map_location: str | None = None) -> Any:
    """Return the content of a file that a process of this run, or the user's script, has just written by torch."""
    return torch.load(file, map_location=map_location, weights_only=False)


# ---- What the user names ----


def load_classifier(setting: str, path: Path) -> Any:
    """Return a classifier of scikit-learn that joblib stored, that is, a pickle.

    Raises:
        InputError: If a folder names it.
        MissingPackageError: If joblib is not installed.
    """
    refuse_in_folder(f"`{setting}={path}`", "unpickled")
    try:
        from joblib import load as load_by_joblib
    except ImportError as error:
        raise MissingPackageError(
            "joblib, which loads confidence models, is not installed; install it with `pip install scikit-learn`, "
            f"or leave `{setting}` out."
        ) from error
    return load_by_joblib(path)


# ---- What may come from anywhere ----


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases: a run writes none, and nested ones make a few lines a value of any size."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias")
        return super().compose_node(parent, index)


def plain_yaml(text: str) -> Any:
    """Return the value of a YAML text without tags and aliases; raise ``yaml.YAMLError`` for any other."""
    try:
        return yaml.load(text, _PlainLoader)
    except RecursionError as error:
        raise yaml.YAMLError("it is nested too deeply") from error


class ShardReader(FileSystemReader):
    """Reads a folder of ``torch.distributed.checkpoint``; its table of contents may only describe tensors and values.

    torch's reader unpickles the table in full.
    """

    @override
    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = _ShardTable(file).load()
        if not isinstance(metadata, Metadata):
            raise UnpicklingError(f"its table of contents is a {type(metadata).__name__}")
        metadata.storage_meta = StorageMeta(load_id=self.load_id)
        return metadata


class _ShardTable(pickle.Unpickler):
    """Admits the classes of a table of contents, which hold sizes, places and types."""

    _TABLE = ("Metadata", "MetadataIndex", "StorageMeta", "ChunkStorageMetadata")
    _ENTRIES = ("TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING")
    _ADMITTED = (
        *((Metadata.__module__, name) for name in (*_TABLE, *_ENTRIES)),
        (FileSystemReader.__module__, "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("collections", "OrderedDict"),
    )

    @override
    def find_class(self, module: str, name: str) -> Any:
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_type and (module, name) not in self._ADMITTED:
            raise UnpicklingError(f"it names {module}.{name}, which is not called")
        return super().find_class(module, name)


class _ValuePlanner(DefaultLoadPlanner):
    """Reads values that are not tensors as ``torch.load(weights_only=True)`` does; torch's planner unpickles them."""

    @override
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


class _SamplerStates(pickle.Unpickler):
    """Reads the names in states of ``optuna.samplers.CmaEsSampler``, whose parts are numbers and arrays."""

    _ADMITTED = (
        *(("cmaes._" + name.lower(), name) for name in ("CMA", "SepCMA", "CMAwM")),
        *(("numpy", name) for name in ("dtype", "ndarray")),
        *(("numpy._core.multiarray", name) for name in ("_reconstruct", "scalar")),
    )

    class _Placeholder:
        def __init__(self, *args: object) -> None:
            pass

        def __setstate__(self, state: object) -> None:
            pass

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ADMITTED:
            raise UnpicklingError(f"it names {module}.{name}, which is not called")
        return self._Placeholder


def check_sampler_states(attributes: Mapping[str, object]) -> None:
    """Raise an ``UnpicklingError`` if Optuna's attributes of a trial hold a pickle that names more than CMA-ES does.

    ``CmaEsSampler`` unpickles them: a hexadecimal text, cut into the attributes ``<name>:0``, ``<name>:1``, ...
    """
    for name in (key.removesuffix(":0") for key in attributes if key.endswith("optimizer:0")):
        parts = itertools.takewhile(lambda key: key in attributes, (f"{name}:{i}" for i in itertools.count()))
        try:
            _SamplerStates(io.BytesIO(bytes.fromhex("".join(str(attributes[key]) for key in parts)))).load()
        except UnpicklingError:
            raise
        except Exception as error:  # a damaged pickle raises errors of many kinds
            raise UnpicklingError(f"it is damaged: {error}") from error


def read_shards(state: dict[str, Any], reader: ShardReader) -> None:
    """Read the entries of ``state``, a flat dict, in place; each process reads its part independently.

    Raises:
        ValueError: If an entry cannot be read.
    """
    planner = _ValuePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        try:
            load(state, storage_reader=reader, planner=planner, no_dist=True)
        except CheckpointException as error:
            # Not an `Exception`: it holds the error of each process, but here each process reads alone.
            raise ValueError(str(next(iter(error.failures.values()))[0])) from error
