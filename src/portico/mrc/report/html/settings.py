"""The settings of a run as HTML."""

from collections.abc import Mapping
from typing import Any

from portico.mrc.report.html.markup import escaped


def settings_tables(settings: Mapping[str, Any]) -> str:
    """Return a table for each group of settings; top-level values that are no mapping share the first one."""
    single = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    groups = {"run": single} if single else {}
    groups.update({name: dict(value) for name, value in settings.items() if isinstance(value, Mapping) and value})
    return "".join(_table(name, values) for name, values in groups.items())


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the settings of two runs that are not the same in both, as "first, then second", grouped as they are."""
    groups: dict[str, dict[str, str]] = {}
    flat_first, flat_second = _flattened(first), _flattened(second)
    for name in dict.fromkeys([*flat_first, *flat_second]):
        values = [_written(flat[name]) if name in flat else "not set" for flat in (flat_first, flat_second)]
        if values[0] != values[1]:
            group, _, key = name.rpartition(".")
            groups.setdefault(group or "run", {})[key] = " \u2192 ".join(values)
    return groups


def _table(name: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{_breakable(key)}</th><td>{escaped(_written(value))}</td></tr>'
        for key, value in _flattened(values).items()
    )
    table = f'<table class="settings"><tbody>{rows}</tbody></table>'
    return f'<section class="panel"><h3>{escaped(name)}</h3>{table}</section>'


def _breakable(name: str) -> str:
    return escaped(name).replace("_", "_<wbr>")


def _flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flattened(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _written(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
