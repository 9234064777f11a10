"""The colours of the pages, in both schemes, by the rules of WCAG 2.2."""

import re

import pytest

from portico.mrc.report.html.assets import styles

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
    assert used - COLOURS.keys() == {"serif", "sans", "tone"}
