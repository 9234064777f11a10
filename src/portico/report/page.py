"""What all pages have in common: the frame, tiles, tables of settings, foreign markup, the Jinja environment."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import nh3
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from portico.errors import InputError
from portico.trust.disk import write_text

REPORT_PAGE = "report.html"
GENERATOR = Markup('<meta name="generator" content="portico-report">')
"""Marks a page as ours, near its beginning."""

# Joined in the order in which they build on each other.
_STYLES = (
    "page.css",
    "figures.css",
    "charts.css",
    "explorer.css",
    "answer.css",
    "sweep.css",
    "narrow.css",
    "print.css",
)
_SCRIPTS = ("charts.js", "copy.js", "query.js", "list.js", "passage.js", "detail.js", "explorer.js", "sweep.js")

# What the trainer adds to the scores of an evaluation.
_NO_SCORES = ("runtime", "samples_per_second", "steps_per_second", "samples", "model_preparation_time")

# HTML allows no control characters but tab, newline and carriage return, and UTF-8 no half of a surrogate pair.
_CONTROLS = dict.fromkeys((*range(9), 11, 12, *range(14, 32), *range(127, 160), *range(0xD800, 0xE000)), "\ufffd")

# What a section of a run may consist of: text, tables and drawings; nothing that executes, loads or links.
_SECTION_TAGS = (
    "b code dd div dl dt em figcaption figure h3 h4 i li ol p pre small span strong sub sup table tbody td tfoot th "
    "thead tr ul circle defs desc ellipse g line path polygon polyline rect svg text title tspan"
)
_SECTION_ATTRIBUTES = (
    "aria-hidden aria-label colspan cx cy d dir dx dy fill fill-opacity font-family font-size font-weight height "
    "lengthAdjust opacity points preserveAspectRatio r role rowspan rx ry scope stroke stroke-dasharray stroke-width "
    "style text-anchor textLength title transform viewBox width x x1 x2 y y1 y2"
)
# The values that could name a file: without parentheses there is no url(), and without a backslash no escape for one.
_PAINT_ATTRIBUTES = ("style", "fill", "stroke")
_PLAIN_PAINT = re.compile(r"[^\\()]*")


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page, left out if it has no content; the navigation shows its name, by default the heading."""

    heading: str
    content: Markup
    name: str = ""

    @property
    def identifier(self) -> str:
        return "-".join((self.name or self.heading).lower().split())


class Interval(NamedTuple):
    """Both ends of a confidence interval, in the unit of the scores."""

    low: float
    high: float

    @property
    def direction(self) -> str:
        """``"up"`` or ``"down"`` if the interval of a difference excludes zero, else ``"unsure"``."""
        if self.low > 0:
            return "up"
        return "down" if self.high < 0 else "unsure"


class Tile(NamedTuple):
    """One figure of the headline; ``percent``, 0..100 like the baselines, is None if it is not a percentage."""

    label: str
    value: str
    percent: float | None = None
    interval: Interval | None = None
    baselines: Mapping[str, float] = {}


def render_page(
    title: str,
    lead: str,
    head: Markup,
    sections: Sequence[Section],
    *,
    kicker: str = "Reading comprehension report",
    form_action: str = "none",
) -> str:
    """Return a page that is complete in itself: it needs no network and no other file.

    Below its title come the lead, a sentence, then the head, HTML, then the sections; the kicker, above it, says what
    kind of page it is. Forms on it may be sent nowhere, or with ``form_action="self"`` to where the page came from.
    """
    # Callers get a plain string, whose methods do not escape their arguments.
    return str(
        render(
            "page.html.j2",
            title=title,
            lead=lead,
            head=head,
            kicker=kicker,
            form_action=form_action,
            sections=[section for section in sections if section.content],
            generator=GENERATOR,
            styles=Markup(styles()),
            # Runs before anything is shown, so that the colours do not change visibly.
            theme_script=Markup(asset("theme.js")),
            scripts=Markup("\n".join(map(asset, _SCRIPTS))),
        )
    )


def check_writable(path: Path) -> None:
    """Raise an ``InputError`` if a page cannot be written there, before the long run that it reports on."""
    is_other = path.exists() and not path.is_file()  # a folder, a terminal, a pipe
    if is_other or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise InputError(f"`--report {path}` cannot be written; name a file in a folder that exists.")


def save_page(path: Path, page: str) -> None:
    """Write a page that :func:`check_writable` has admitted.

    Raises:
        InputError: If the disk is full, or the folder was removed during the run.
    """
    try:
        write_text(path, page)
    except OSError as error:
        raise InputError(
            f"`--report {path}` cannot be written ({error.strerror}); what it would show is above. Make room, or name "
            "a file in a folder that exists."
        ) from error


def render(template: str, **values: Any) -> Markup:
    """Return the HTML of a template; values that are not ``Markup`` are escaped."""
    return Markup(_environment().get_template(template).render(values))


def macros(template: str) -> Any:
    """Return the macros of a template as attributes: functions that return ``Markup``."""
    return _environment().get_template(template).module


def html_table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> Markup:
    """Return a table in a panel; its cells are escaped."""

    def cells(form: str, row: Sequence[object]) -> Markup:
        return Markup().join(Markup(form).format(_strip_controls(value)) for value in row)

    body = Markup().join(Markup("<tr>{}</tr>").format(cells("<td>{}</td>", row)) for row in rows)
    head = cells('<th scope="col">{}</th>', heads)
    table = Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, body)
    return Markup('<div class="panel wide plain">{}</div>').format(table)


def panels(*contents: Markup, small: bool = False) -> Markup:
    """Return charts or tables in a grid, two in a row or three if small; empty if all of them are."""
    joined = Markup().join(contents)
    css_class = "panels small" if small else "panels"
    return Markup('<div class="{}">{}</div>').format(css_class, joined) if joined else joined


def styles() -> str:
    return "".join(map(asset, _STYLES))


def scores_of(metrics: Mapping[str, float], *first: str, further: Collection[str] = ()) -> dict[str, float]:
    """Return all scores of an evaluation by name, without the prefix ``eval_``.

    Args:
        metrics: The metrics of a run; those of its training, and the speed of the evaluation, are left out.
        first: Names of ``metrics`` that come first, of whatever kind; the loss is last, the others keep their order.
        further: Names of ``metrics`` that are scores although they lack the prefix.
    """
    scores = [name for name in metrics if name in further or name.startswith("eval_")]
    scores = [name for name in scores if name.removeprefix("eval_") not in _NO_SCORES]
    scores.sort(key=lambda name: name == "eval_loss")
    names = dict.fromkeys([*first, *scores])
    return {name.removeprefix("eval_"): metrics[name] for name in names if isinstance(metrics.get(name), Real)}


def duration(seconds: float) -> str:
    """Return a time span as text: "2 h 5 min", "3 min 20 s" or "4.2 s"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def settings_panels(settings: Mapping[str, Any]) -> Markup:
    """Return a table for each group of settings; top-level values that are not mappings share the first one."""
    top_level = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
    groups: dict[str, Mapping[str, Any]] = {"run": top_level} if top_level else {}
    groups |= {name: value for name, value in settings.items() if isinstance(value, Mapping) and value}
    shown = {name: {key: _format(value) for key, value in _flatten(group).items()} for name, group in groups.items()}
    return panels(macros("parts.html.j2").settings_tables(shown), small=True)


def compare_settings(*runs: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the settings that differ as "first → second", of several runs as "a | b | c", grouped as they are."""
    groups: dict[str, dict[str, str]] = {}
    flats = [_flatten(settings) for settings in runs]
    separator = " \u2192 " if len(runs) == 2 else " | "
    for name in dict.fromkeys(name for flat in flats for name in flat):
        values = [_format(flat[name]) if name in flat else "not set" for flat in flats]
        if len(set(values)) > 1:
            group, _, key = name.rpartition(".")
            groups.setdefault(group or "run", {})[key] = separator.join(values)
    return groups


def harmless_markup(text: str) -> Markup:
    """Return HTML of unknown origin without markup that could execute, load or link something.

    ``RunRecord.sections`` is read from the ``report.json`` of a folder, which anybody may have written.
    """
    return Markup(
        nh3.clean(
            text.translate(_CONTROLS),
            tags=set(_SECTION_TAGS.split()),
            attributes={"*": set(_SECTION_ATTRIBUTES.split())},
            attribute_filter=lambda tag, name, value: (
                None if name in _PAINT_ATTRIBUTES and not _PLAIN_PAINT.fullmatch(value) else value
            ),
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("portico.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # Runs before escaping, on everything but `Markup`.
        finalize=_strip_controls,
    )
    environment.filters["getitem"] = lambda mapping, key: mapping[key]  # `attribute=` would split a name at its dots
    environment.filters["number"] = lambda value, spec: format(value, spec)
    # Long names such as "per_device_train_batch_size" may break after an underscore.
    environment.filters["breakable"] = lambda name: Markup("_<wbr>").join(
        map(escape, _strip_controls(name).split("_"))
    )
    return environment


def _strip_controls(value: Any) -> Any:
    return value.translate(_CONTROLS) if isinstance(value, str) and not isinstance(value, Markup) else value


def asset(name: str) -> str:
    """Return the text of a style sheet or a script."""
    return files("portico.report").joinpath("assets", name).read_text(encoding="utf-8")


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        is_group = isinstance(value, Mapping) and value
        flat |= _flatten(value, f"{prefix}{key}.") if is_group else {f"{prefix}{key}": value}
    return flat


def _format(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
