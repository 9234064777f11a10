"""Parameters chosen by regular expressions: some frozen, some with options of their own."""

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from portico.gradient_descent.errors import ConfigurationError

logger = logging.getLogger(__name__)

NamedParameters = Iterable[tuple[str, nn.Parameter]]
# Regular expressions of names, with the options of the group.
ParameterGroups = Sequence[tuple[Sequence[str], Mapping[str, Any]]]


def freeze(model: nn.Module, patterns: Sequence[str] | None) -> None:
    """Turn gradients off for the parameters whose names a pattern of ``patterns`` is found in; log which.

    Raises:
        ConfigurationError: If a pattern is no regular expression.
    """
    searches = [_compiled(pattern) for pattern in patterns or ()]
    for name, parameter in model.named_parameters():
        if any(search.search(name) for search in searches):
            parameter.requires_grad_(False)
    for word, wanted in (("frozen", False), ("tunable", True)):
        names = [name for name, parameter in model.named_parameters() if parameter.requires_grad is wanted]
        logger.info("The parameters that are %s: %s", word, ", ".join(names) or "none")


def make_parameter_groups(model_parameters: NamedParameters, groups: ParameterGroups | None = None) -> list[Any]:
    """Return what an optimizer takes as ``params``: the parameters, or groups of them.

    Args:
        model_parameters: Pairs of name and parameter.
        groups: Pairs of regular expressions and options; options with ``"requires_grad": False`` freeze the group
            and leave it out. What no expression is found in comes last, without options.

    Raises:
        ConfigurationError: If a name belongs to two groups, or an expression cannot be read.
    """
    named = list(model_parameters)
    if not groups:
        return [parameter for _, parameter in named]
    indices, unused = find_groups([name for name, _ in named], groups)
    for pattern in unused:
        logger.warning("The parameter group pattern '%s' is found in no parameter's name.", pattern)
    made: list[dict[str, Any]] = [{"params": [], **options} for _, options in groups]
    rest: dict[str, Any] = {"params": []}
    for (_, parameter), index in zip(named, indices, strict=True):
        (rest if index is None else made[index])["params"].append(parameter)
    return [group for group in (*made, rest) if not _frozen(group)]


def find_groups(names: Sequence[str], groups: ParameterGroups) -> tuple[list[int | None], list[str]]:
    """Return the index of the group that each name belongs to, ``None`` for none, and the patterns found nowhere.

    Raises:
        ConfigurationError: If a name belongs to two groups, or an expression cannot be read.
    """
    _check_form(groups)
    searches = [[_compiled(pattern) for pattern in patterns] for patterns, _ in groups]
    used: set[str] = set()
    indices = [_group_of(name, searches, used) for name in names]
    patterns = [search.pattern for group in searches for search in group]
    return indices, [pattern for pattern in patterns if pattern not in used]


def _check_form(groups: Any) -> None:
    for group in groups:
        is_pair = isinstance(group, list | tuple) and len(group) == 2
        if not (is_pair and isinstance(group[0], list | tuple) and isinstance(group[1], Mapping)):
            raise ConfigurationError(
                f"`parameter_groups` holds {group!r}; write each group as a list of patterns and a dict of options: "
                '[["bias", "norm"], {"weight_decay": 0.0}].'
            )


def _group_of(name: str, searches: list[list[re.Pattern[str]]], used: set[str]) -> int | None:
    found: int | None = None
    for index, group in enumerate(searches):
        for search in group:
            if not search.search(name):
                continue
            if found not in (None, index):
                raise ConfigurationError(
                    f"The parameter '{name}' belongs to two parameter groups (found by '{search.pattern}' and by an "
                    "earlier pattern); make the patterns exclude each other."
                )
            found = index
            used.add(search.pattern)
    return found


def _frozen(group: dict[str, Any]) -> bool:
    if group.get("requires_grad", True):
        return False
    for parameter in group["params"]:
        parameter.requires_grad_(False)
    unused = sorted(set(group) - {"params", "requires_grad"})
    if unused:
        logger.warning("A frozen parameter group has no use for its options: %s.", ", ".join(unused))
    return True


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigurationError(
            f"'{pattern}' is no regular expression ({error}); write one that is found in the parameters' names."
        ) from error
