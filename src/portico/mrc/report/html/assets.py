"""The files that the pages are put together from."""

from importlib.resources import files
from string import Template

_FOLDER = files("portico.mrc.report").joinpath("assets")
_STYLES = ("page.css", "figures.css", "charts.css", "explorer.css", "narrow.css", "print.css")
_SCRIPTS = ("charts.js", "query.js", "list.js", "passage.js", "detail.js", "explorer.js")


def styles() -> str:
    """Return the style sheets, joined in the order in which they build on each other."""
    return "".join(map(_text, _STYLES))


def scripts() -> str:
    """Return the scripts that make the page work, joined in the order in which they build on each other."""
    return "\n".join(map(_text, _SCRIPTS))


def theme_script() -> str:
    """Return the script that must run before anything is shown, so that the colours do not change before the eye."""
    return _text("theme.js")


def filled(name: str, **values: str) -> str:
    """Return an HTML file with its placeholders filled in; the values are HTML."""
    return Template(_text(name)).substitute(values)


def _text(name: str) -> str:
    return _FOLDER.joinpath(name).read_text(encoding="utf-8")
