import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from damage import largest_file
from portico.errors import InputError
from portico.report.page import (
    check_writable,
    compare_settings,
    harmless_markup,
    html_table,
    save_page,
    settings_panels,
    styles,
)


def test_settings_become_one_table_a_group():
    html = settings_panels(
        {"seed": 42, "args": {"lr": 1e-3, "optim": {"name": "adamw"}, "x": None, "y": [1, 2]}, "e": {}}
    )
    assert html.count("<table") == 2
    for name, value in {"seed": 42, "lr": 0.001, "optim.name": "adamw", "x": "none", "y": "1, 2"}.items():
        assert f'<th scope="row">{name}</th><td>{value}</td>' in html
    assert settings_panels({}) == ""


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("<p>Two stages &amp; more</p>", "<p>Two stages &amp; more</p>"),
        ('<svg viewBox="0 0 1 1"><path d="M0 0"/></svg>', '<svg viewBox="0 0 1 1"><path d="M0 0"></path></svg>'),
        ("<script>alert(1)</script>", ""),
        ("<ScRiPt >alert(1)</sCrIpT>", ""),
        ("<img src=x onerror=alert(1)>", ""),
        ('<p onclick="alert(1)">a</p>', "<p>a</p>"),
        ('<svg><a href="javascript:alert(1)">a</a></svg>', "<svg>a</svg>"),
        ('<p style="color: red">a</p>', '<p style="color: red">a</p>'),
        ('<p style="background:url(//x)">a</p>', "<p>a</p>"),
        (r'<p style="background:u\72l(//x)">a</p>', "<p>a</p>"),
        ('<svg><rect fill="url(#a)"></rect></svg>', "<svg><rect></rect></svg>"),
        ("<svg><style>*{}</style></svg>", "<svg></svg>"),
        ("</div></section><p>a", "<p>a</p>"),
        ("a < b <!-- <img src=x> -->", "a &lt; b "),
        ("<b>x</\ud800b>\ud800", "<b>x\ufffd</b>"),  # JSON can hold half of a surrogate pair
    ],
)
def test_markup_that_could_execute_or_load_is_removed(foreign, shown):
    assert harmless_markup(foreign) == shown
    assert harmless_markup(shown) == shown


def test_markup_in_the_value_of_an_attribute_stays_in_it():
    found = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attributes: found.append((tag, attributes))
    parser.feed(harmless_markup('<p title="&quot;><img src=x>">a</p>'))
    assert found == [("p", [("title", '"><img src=x>')])]


def test_a_table_shows_any_text_as_text():
    assert "<td>&lt;b&gt;\ufffd</td>" in html_table(["a"], [["<b>\x01"]])


def test_settings_that_differ():
    first = {"seed": 1, "args": {"lr": 1e-3, "same": 2, "optim": {"name": "adamw"}}}
    second = {"seed": 2, "args": {"lr": 1e-4, "same": 2, "optim": {"name": "sgd", "momentum": 0.9}}}
    arrow = " \u2192 "
    assert compare_settings(first, second) == {
        "run": {"seed": f"1{arrow}2"},
        "args": {"lr": f"0.001{arrow}0.0001"},
        "args.optim": {"name": f"adamw{arrow}sgd", "momentum": f"not set{arrow}0.9"},
    }


COLOURS = {
    name: values for name, *values in re.findall(r"--([\w-]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", styles())
}
BACKGROUNDS = ["paper", "panel", "raised"]
TEXTS = ["ink", "soft", "link", "up", "down"]
SHAPES = ["first", "second", "predicted", "other-run", "edge", "exact", "declined", "boundary", "wrong-span"]
SHAPES += ["false-no-answer", "missed-no-answer"]


def luminance(colour):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first, second):
    lighter, darker = sorted((luminance(first), luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_of_black_and_white():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(
    ("text", "background"), [*((text, under) for text in TEXTS for under in BACKGROUNDS), ("gold-ink", "gold")]
)
def test_text_can_be_read(text, background, scheme):
    assert contrast(COLOURS[text][scheme], COLOURS[background][scheme]) >= 4.5


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("background", ["paper", "panel"])
def test_shapes_can_be_told_from_what_is_below_them(shape, background, scheme):
    assert contrast(COLOURS[shape][scheme], COLOURS[background][scheme]) >= 3


def test_every_colour_that_is_used_is_given():
    used = set(re.findall(r"var\(--([\w-]+)\)", styles()))
    # Fonts, and sizes that elements set themselves.
    assert used - COLOURS.keys() == {"serif", "sans", "tone", "side", "head", "share", "axes"}


def test_a_page_for_which_there_is_no_room_is_refused_with_a_sentence(tmp_path):
    page = tmp_path / "page.html"
    page.write_text("before")
    with largest_file(100), pytest.raises(InputError) as refused:
        save_page(page, "x" * 1000)
    said = rf"`--report {page}` cannot be written .File too large: 1,000 bytes are needed, and no file may have more"
    assert re.match(said, str(refused.value))
    assert page.read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_page_whose_folder_has_gone_is_refused_with_a_sentence(tmp_path, monkeypatch):
    """As a script may do to its working folder."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    check_writable(Path("page.html"))
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match=r"`--report page.html` cannot be written .No such file or directory.; what"):
        save_page(Path("page.html"), "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").write_text("a file in its place")
    with pytest.raises(InputError, match=r"cannot be written .(File exists|Not a directory)"):
        save_page(tmp_path / "gone" / "page.html", "")
    assert [path.name for path in tmp_path.iterdir()] == ["gone"]
