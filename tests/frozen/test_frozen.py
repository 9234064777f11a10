"""What users can see is as recorded; `python tests/frozen/surface.py` records a change that is meant."""

import pytest

from frozen.surface import FOLDER, as_text, composed, known_settings, public_surface
from portico.cli.composition import experiment_names
from portico.cli.known_settings import OF_PORTICO


def test_public_names_and_signatures_are_as_recorded():
    assert public_surface() == (FOLDER / "public_surface.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("experiment", experiment_names())
def test_an_experiment_composes_as_recorded(experiment):
    assert composed(experiment) == (FOLDER / f"{experiment}.yaml").read_text(encoding="utf-8")


def test_the_settings_that_come_with_portico_are_those_of_its_classes():
    # Not compared by pytest, which would search minutes for the difference.
    is_current = as_text(known_settings()) == OF_PORTICO.read_text(encoding="utf-8")
    assert is_current, f"{OF_PORTICO} was written for other sources; run `python tests/frozen/surface.py`"
