"""From the configuration files and a list of overrides to one plain dict."""

from collections.abc import Sequence
from typing import Any, cast

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from portico.cli.explain import explained
from portico.cli.keys import OPEN_SECTIONS
from portico.cli.location import config_dir
from portico.cli.runner import check_settings

CONFIG_NAME = "config"
HYDRA_VERSION_BASE = "1.3"


def register_open_sections() -> None:
    """Let a key be set that no file mentions, as the files state only what differs from the defaults.

    Hydra refuses such keys (its struct flag), and would ask for a plus sign before `args.weight_decay=0.1`. What is
    valid is decided by `check_settings`, which knows the fields and can name the nearest.
    """
    sections = {name: DictConfig({}, flags={"struct": False}) for name in OPEN_SECTIONS}
    ConfigStore.instance().store(name="open_sections", node=DictConfig(sections))


def to_plain(config: DictConfig) -> dict[str, Any]:
    """Return the configuration as plain containers, every reference resolved.

    Raises:
        InputError: If a mandatory value is missing or a reference leads nowhere.
    """
    with explained():
        return cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=True))


def compose(overrides: Sequence[str] | None = None, experiment: str | None = "mrc") -> dict[str, Any]:
    """Compose and check a configuration without running it: no folder is made, no logging is set up.

    Args:
        overrides: What would follow `train.py` on the command line, such as `["args.learning_rate=1e-4"]`.
        experiment: The file of `conf/experiment` to start from; None when the overrides choose the groups.

    Returns:
        One plain dict for each section (`args`, `model`, `data`, ...); `args` holds keywords of `TrainingArguments`.

    Raises:
        InputError: If an override cannot be read, or sets a key that does not exist.
    """
    register_open_sections()
    chosen = [f"+experiment={experiment}"] if experiment is not None else []
    with explained(), hydra.initialize_config_dir(str(config_dir()), version_base=HYDRA_VERSION_BASE):
        config = hydra.compose(CONFIG_NAME, [*chosen, *(overrides or [])])
        # Resolved while Hydra is initialised: its resolvers, such as `now`, live as long.
        settings = to_plain(config)
    check_settings(settings)
    return settings
