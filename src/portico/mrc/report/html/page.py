"""What all pages of the report have alike."""

from collections.abc import Sequence
from dataclasses import dataclass

from portico.mrc.report.html.assets import filled, scripts, styles, theme_script
from portico.mrc.report.html.markup import escaped

GENERATOR = '<meta name="generator" content="portico-report">'


@dataclass(frozen=True, slots=True)
class Section:
    """One part of a page.

    Args:
        heading: Its heading.
        html: What is in it; nothing to leave the section out.
        name: Its short name in the navigation; the heading by default.
    """

    heading: str
    html: str
    name: str = ""

    @property
    def identifier(self) -> str:
        """The place it is reached at."""
        return "-".join((self.name or self.heading).lower().split())


def page(title: str, lead: str, head: str, sections: Sequence[Section]) -> str:
    """Return a page that needs nothing else: no network, no other file.

    Args:
        title: Its heading.
        lead: A sentence below it.
        head: HTML below that.
        sections: The rest.
    """
    shown = [section for section in sections if section.html]
    return filled(
        "page.html",
        title=escaped(title),
        generator=GENERATOR,
        theme=theme_script(),
        style=styles(),
        script=scripts(),
        lead=escaped(lead),
        head=head,
        navigation="".join(_link(section) for section in shown),
        sections="".join(_section(section) for section in shown),
    )


def panels(*parts: str) -> str:
    """Return HTML parts side by side, two in a row where there is room, or nothing if all are empty."""
    return _grid("panels", parts)


def small_panels(*parts: str) -> str:
    """Return HTML parts as :func:`panels` does, three in a row."""
    return _grid("panels small", parts)


def _grid(css_class: str, parts: Sequence[str]) -> str:
    drawn = "".join(parts)
    return f'<div class="{css_class}">{drawn}</div>' if drawn else ""


def _link(section: Section) -> str:
    return f'<li><a href="#{escaped(section.identifier)}">{escaped(section.name or section.heading)}</a></li>'


def _section(section: Section) -> str:
    place = escaped(section.identifier)
    return (
        f'<section id="{place}" aria-labelledby="{place}-heading"><h2 id="{place}-heading">'
        f"{escaped(section.heading)}</h2>{section.html}</section>"
    )
