"""``ipu_config.json``: an ``IPUConfig`` in a file."""

import copy
import json
from pathlib import Path
from typing import Any, Self

from portico.errors import InputError
from portico.hf_compat import cached_file
from portico.ipu.config.attributes import ATTRIBUTES

CONFIG_NAME = "ipu_config.json"
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
# What other libraries write beside the attributes.
_FOREIGN_KEYS = ("transformers_version", "optimum_version", "architectures", "model_type", "name_or_path")


class ConfigFile:
    """Is written to files and read from them."""

    def to_dict(self) -> dict[str, Any]:
        """Return every attribute by name."""
        return {name: copy.deepcopy(getattr(self, name)) for name in ATTRIBUTES}

    def to_diff_dict(self) -> dict[str, Any]:
        """Return the attributes that differ from the defaults."""
        defaults = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if value != defaults[name]}

    def to_json_string(self, use_diff: bool = False) -> str:
        """Return the attributes as JSON text."""
        return json.dumps(self.to_diff_dict() if use_diff else self.to_dict(), indent=2, sort_keys=True) + "\n"

    def to_json_file(self, json_file_path: str | Path, use_diff: bool = False) -> None:
        """Write the attributes to a file."""
        Path(json_file_path).write_text(self.to_json_string(use_diff), encoding="utf-8")

    def save_pretrained(self, save_directory: str | Path, **kwargs: Any) -> None:
        """Write ``ipu_config.json`` into a folder."""
        Path(save_directory).mkdir(parents=True, exist_ok=True)
        self.to_json_file(Path(save_directory) / CONFIG_NAME)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Make a configuration of a dict; keywords win over it."""
        known = {name: value for name, value in config_dict.items() if name not in _FOREIGN_KEYS}
        return cls(**{**known, **kwargs})

    @classmethod
    def from_json_file(cls, json_file: str | Path) -> Self:
        """Make a configuration of a file."""
        return cls.from_dict(json.loads(Path(json_file).read_text(encoding="utf-8")))

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | Path, **kwargs: Any) -> Self:
        """Read ``ipu_config.json`` from a folder or from the hub.

        Args:
            pretrained_model_name_or_path: A folder, a file, or a name on the hub.
            **kwargs: Attributes that win over the file's, and options of the hub (``revision``, ``token``, ...).

        Raises:
            InputError: If there is no such file.
        """
        path = Path(pretrained_model_name_or_path)
        hub_options = {name: kwargs.pop(name) for name in _HUB_OPTIONS if name in kwargs}
        try:
            file = path if path.is_file() else cached_file(str(path), CONFIG_NAME, **hub_options)
        except OSError as error:
            raise InputError(
                f"{path} has no {CONFIG_NAME}: {' '.join(str(error).split())} Name a folder that has one, or make the "
                "configuration with `IPUConfig(...)`."
            ) from error
        return cls.from_dict(json.loads(Path(str(file)).read_text(encoding="utf-8")), **kwargs)
