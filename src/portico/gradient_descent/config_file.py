"""AllenNLP's configuration files: Jsonnet, or JSON."""

import json
import os
from pathlib import Path
from typing import Any

from portico.gradient_descent.errors import ConfigurationError


def read_config(path: str | Path) -> dict[str, Any]:
    """Return what a configuration file says, as plain values.

    Jsonnet reads the environment with ``std.extVar("NAME")``. JSON needs no package; with ``rjsonnet`` installed it is
    read as Jsonnet too, as AllenNLP reads it.

    Raises:
        ConfigurationError: If the file is missing, cannot be read, or needs a package that is not installed.
    """
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(f"`allennlp_config={path}` is no file; set it to a .jsonnet or .json file.")
    try:
        from rjsonnet import evaluate_file
    except ImportError:
        return _checked(_read_json(file), file)
    try:
        return _checked(json.loads(evaluate_file(str(file), ext_vars=_environment())), file)
    except RuntimeError as error:
        raise ConfigurationError(
            f"{file} cannot be read as Jsonnet ({' '.join(str(error).split())}); correct it. `std.extVar` reads "
            "environment variables, which must be set."
        ) from error


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigurationError(
            f"{file} is not plain JSON ({error}), and the package that reads Jsonnet is not installed; install it "
            "with `pip install 'portico[allennlp]'`, or correct the file."
        ) from error


def _checked(config: Any, file: Path) -> dict[str, Any]:
    if not isinstance(config, dict):
        raise ConfigurationError(f"{file} holds a {type(config).__name__}; write an object with the key 'trainer'.")
    return config


def _environment() -> dict[str, str]:
    """Return the variables that are text: Jsonnet takes no others."""
    return {name: value for name, value in os.environ.items() if value.isprintable()}
