"""What users can see is as recorded; `python tests/frozen/surface.py` records a change that is meant."""

import pytest

from frozen.surface import FOLDER, composed, public_surface
from portico.cli.composition import experiment_names


def test_public_names_and_signatures_are_as_recorded():
    assert public_surface() == (FOLDER / "public_surface.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("experiment", experiment_names())
def test_an_experiment_composes_as_recorded(experiment):
    assert composed(experiment) == (FOLDER / f"{experiment}.yaml").read_text(encoding="utf-8")
