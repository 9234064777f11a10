"""Where files are opened that could hold code; no other module unpickles.

What comes from elsewhere is read as data, and cannot take much more memory than its file: tensors by
:func:`load_tensors`, the shards of ``torch.distributed.checkpoint`` by :func:`read_shards`, YAML by
:func:`plain_yaml`. What is unpickled in full has been written by this run itself, or is named by the user.
"""

import io
import itertools
import math
import pickle
import struct
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence, Sized
from contextlib import suppress
from functools import cached_property
from lzma import LZMAError
from pathlib import Path
from pickle import UnpicklingError as UnpicklingError
from typing import IO, Any, ClassVar
from zipfile import BadZipFile, ZipFile

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
from portico.trust.disk import replaced
from portico.trust.names import refuse_in_folder

# ---- What this run has written itself ----


def pickled(value: object) -> bytes:
    """Return what :func:`unpickled` reads in another process of this run."""
    return pickle.dumps(value)


def unpickled(content: bytes) -> Any:
    """Return what a process of this run has sent: a folder that only this user can read has held it since."""
    return pickle.loads(content)


def save_tensors(value: object, path: Path) -> None:
    """Write a file by ``torch.save``, as :func:`~portico.trust.disk.replaced` does."""
    with replaced(path) as staging:
        torch.save(value, staging)


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

_MOST_TIMES = 100
_ALWAYS_TAKEN = 64 << 20  # bytes
_ELEMENT = 8  # bytes of a number in a tensor, at most in what we write
_ZIP_MAGIC = b"PK\x03\x04"
_PICKLES_IN_LEGACY_FILES = 5
# What nobody writes for values: other ways to call, and bytes that are allocated before they are read.
_REFUSED_OPCODES = b"".join(
    (pickle.INST, pickle.OBJ, pickle.NEWOBJ_EX, pickle.EXT1, pickle.EXT2, pickle.EXT4, pickle.BYTEARRAY8)
)
_CALLS = pickle.REDUCE + pickle.NEWOBJ + pickle.BUILD


def _counting(read: Callable[[Any], None]) -> Callable[["_BoundedUnpickler"], None]:
    """Return ``read``, which handles an opcode that calls, with the memory counted before."""

    def count_and_read(unpickler: "_BoundedUnpickler") -> None:
        unpickler.take_for_call()
        read(unpickler)

    return count_and_read


class _BoundedUnpickler(pickle._Unpickler):
    """Refuses a pickle before the calls in it make values of more than ``most`` bytes.

    Python's class, since the one in C makes a list as long as an index in the file.
    """

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = {
        code: _counting(read) if code in _CALLS else read
        for code, read in pickle._Unpickler.dispatch.items()
        if code not in _REFUSED_OPCODES
    }

    def __init__(self, file: IO[bytes], most: int = _ALWAYS_TAKEN) -> None:
        super().__init__(file, encoding="bytes")
        self._most = most
        self._taken = 0

    @override
    def load(self) -> Any:
        try:
            return super().load()
        except (LookupError, TypeError, AttributeError, struct.error) as error:
            raise UnpicklingError(f"it is damaged ({error})") from error

    def take(self, num_bytes: int) -> None:
        self._taken += abs(num_bytes)
        if self._taken > self._most:
            raise UnpicklingError(f"its values would take more than {self._most:,} bytes")

    def take_for_call(self) -> None:
        """Take what a call may make of its arguments: copies, as many bytes as a number says, or a tensor."""
        given = self.stack[-1] if isinstance(self.stack[-1], tuple | list) else ()
        self.take(sum(len(argument) for argument in given if isinstance(argument, Sized)))
        if given and _are_integers(given):
            self.take(_ELEMENT * math.prod(given))
        elif len(given) > 3 and isinstance(given[2], tuple) and _are_integers(given[2]):
            self.take(_ELEMENT * math.prod(given[2]))  # storage, offset, shape, strides, ...


def _are_integers(values: Sequence[object]) -> bool:
    return all(isinstance(value, int) for value in values)


class _Placeholder:
    """Stands for what a pickle names, and for what would be made of it."""

    def __init__(self, *args: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        pass


class _Rehearsal(_BoundedUnpickler):
    """Reads a pickle of torch with placeholders for tensors and all else that it names."""

    @override
    def find_class(self, module: str, name: str) -> Any:
        return _Placeholder

    @override
    def persistent_load(self, pid: Any) -> Any:
        return _Placeholder()  # torch reads no more of a storage than the file has


def load_tensors(file: Path, **options: Any) -> Any:
    """Return ``torch.load(weights_only=True)`` of a file, with more ``options`` of ``torch.load``.

    Raises:
        UnpicklingError: If it would take much more memory than the file has bytes, or names more than torch allows.
    """
    with file.open("rb") as opened:
        refuse_oversized(opened)
    return torch.load(file, weights_only=True, **options)


def load_engine_states(file: Path, **options: Any) -> Any:
    """Return the content of a file of DeepSpeed, as :func:`load_tensors` does.

    Besides tensors and values such a file names four classes of DeepSpeed, which hold numbers and call nothing when
    they are made.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    with torch.serialization.safe_globals([DynamicLossScaler, LossScaler, ZeroStageEnum, fragment_address]):
        return load_tensors(file, **options)


def refuse_oversized(file: IO[bytes]) -> None:
    """Raise an ``UnpicklingError`` if a file of torch would take much more memory than it has bytes; else rewind it.

    torch writes archives without compression. The pickle in an archive, or the five in a file of torch before 1.6, may
    call a few types, such as ``bytearray`` with a number, so it is read first with placeholders in their place.
    """
    size = file.seek(0, io.SEEK_END)
    most = max(_ALWAYS_TAKEN, _MOST_TIMES * size)
    file.seek(0)
    is_archive = file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC
    file.seek(0)
    if is_archive:
        try:
            with ZipFile(file) as archive:
                parts = archive.infolist()
                inside = sum(part.file_size for part in parts)
                if inside > size:
                    raise UnpicklingError(f"its parts would take {inside:,} bytes, but the file has {size:,}")
                for part in parts:
                    if part.filename.lower().endswith("data.pkl"):
                        _Rehearsal(archive.open(part), most).load()
        except (BadZipFile, RuntimeError, zlib.error, LZMAError) as error:
            raise UnpicklingError(str(error)) from error
    else:
        with suppress(EOFError):  # which torch meets too
            for _ in range(_PICKLES_IN_LEGACY_FILES):
                _Rehearsal(file, most).load()
    file.seek(0)


# A run writes 5,000. Brackets take 350 times as much memory as text, and 30 seconds per million.
_LONGEST_YAML = 1 << 18


class _PlainLoader(yaml.SafeLoader):
    """Reads YAML without aliases: a run writes none, and nested ones make a few lines a value of any size."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias")
        return super().compose_node(parent, index)


def plain_yaml(text: str) -> Any:
    """Return the value of a YAML text without tags and aliases; raise ``yaml.YAMLError`` for any other."""
    if len(text) > _LONGEST_YAML:
        raise yaml.YAMLError(f"it has {len(text):,} characters, more than the {_LONGEST_YAML:,} of any run")
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
        self.table.storage_meta = StorageMeta(load_id=self.load_id)
        return self.table

    @cached_property
    def table(self) -> Metadata:
        """The table of contents: what has been judged is what is used."""
        with Path(self.path, ".metadata").open("rb") as file:
            metadata = _ShardTable(file).load()
        if not isinstance(metadata, Metadata):
            raise UnpicklingError(f"its table of contents is a {type(metadata).__name__}")
        for stored in metadata.storage_data.values():
            if Path(stored.relative_path).name != stored.relative_path or stored.transform_descriptors:
                raise UnpicklingError(
                    f"it names {stored.relative_path!r}, which is no shard next to it, or compressed"
                )
        return metadata

    @override
    def _slice_file(self, file: IO[bytes], sinfo: Any) -> IO[bytes]:
        # A copy of one tensor: the view seeks from its end in the wrong direction, where an archive has its table.
        part = io.BytesIO(super()._slice_file(file, sinfo).read(sinfo.length))
        refuse_oversized(part)
        return part


class _ShardTable(_BoundedUnpickler):
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
        if module == "pathlib._local":  # as Python 3.13 writes it, which no other version has
            module = "pathlib"
        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_type and (module, name) not in self._ADMITTED:
            raise UnpicklingError(f"it names {module}.{name}, which is not called")
        return super().find_class(module, name)


class _ValuePlanner(DefaultLoadPlanner):
    """Reads values that are not tensors as ``torch.load(weights_only=True)`` does; torch's planner unpickles them."""

    @override
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


class _SamplerStates(_BoundedUnpickler):
    """Reads the names in states of ``optuna.samplers.CmaEsSampler``, whose parts are numbers and arrays."""

    _ADMITTED = (
        *(("cmaes._" + name.lower(), name) for name in ("CMA", "SepCMA", "CMAwM")),
        *(("numpy", name) for name in ("dtype", "ndarray")),
        *(("numpy._core.multiarray", name) for name in ("_reconstruct", "scalar")),
    )

    @override
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ADMITTED:
            raise UnpicklingError(f"it names {module}.{name}, which is not called")
        return _Placeholder


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
