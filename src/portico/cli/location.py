"""Where the configuration files lie."""

from pathlib import Path


def config_dir() -> Path:
    """Return the folder of the configuration files: inside an installed package, else that of the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parents[1] / "conf"


def experiment_names() -> list[str]:
    """Return what `+experiment=` can be, in alphabetical order."""
    return sorted(path.stem for path in (config_dir() / "experiment").glob("*.yaml"))
