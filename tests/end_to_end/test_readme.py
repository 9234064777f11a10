"""The README opens with what a newcomer needs; test_docs.py runs its code and follows its links."""

from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_first_screen_goes_from_install_to_example_to_commands():
    screen = "\n".join(README.splitlines()[:40])
    steps = [
        "pip install -c constraints.txt .",
        "from portico import Trainer",
        "train.py +experiment=mrc",
        ".venv/bin/pytest",
    ]
    places = [screen.find(step) for step in steps]
    assert -1 not in places
    assert places == sorted(places)
