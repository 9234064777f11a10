"""The catalogue has every message of the source, as it is raised, with the cure apart."""

import re

import pytest
from errors import PAGE, messages, page, split, told, topic_of

from models import toy_trainer
from portico import InputError, LossSpike
from portico.mrc import read_squad


def test_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python docs/errors.py`"


def test_every_module_with_messages_has_a_topic():
    headings = {topic_of(message.module).heading for message in messages()}
    assert {"Datasets and loaders", "ONNX Runtime", "Reading comprehension: data", "Sweeps"} <= headings
    with pytest.raises(LookupError, match=r"no topic of docs/errors\.py names it"):
        topic_of("portico/unheard_of.py")


def pattern_of(text):
    """Return what a message looks like, with anything for its values."""
    parts = re.split(r"(<[^<>]*>)", text)
    return re.compile("".join(".*" if part.startswith("<") else re.escape(part) for part in parts))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda folder: LossSpike(action="shout"),
        lambda folder: toy_trainer(folder).train(resume_from_checkpoint=str(folder / "nowhere")),
        lambda folder: read_squad(folder / "nowhere.json"),
    ],
    ids=["callback", "checkpoint", "file"],
)
def test_a_raised_error_is_found_on_the_page(mistake, tmp_path):
    with pytest.raises(InputError) as caught:
        mistake(tmp_path)
    found = [
        one for one in messages() if len(one.text.split()) > 4 and pattern_of(one.text).fullmatch(str(caught.value))
    ]
    assert found, str(caught.value)
    cause, cure = split(found[0].text)
    assert cause
    assert cure


@pytest.mark.parametrize(
    ("text", "cause", "cure"),
    [
        ("`a=<a>` is 0; set it to 1.", "`a=<a>` is 0", "Set it to 1."),
        ("No loader. Give a dataset.", "No loader", "Give a dataset."),
        ("<path>: not read (<why>) Check it.", "<path>: not read (<why>)", "Check it."),
        ("The optimizer starts fresh.", "The optimizer starts fresh.", ""),
    ],
)
def test_cause_and_cure_are_told_apart(text, cause, cure):
    assert split(text) == (cause, cure)


def test_every_error_says_what_to_do():
    without = [one for one in messages() if one.kind != "warning" and len(one.text.split()) > 2 and not told(one)[1]]
    # AllenNLP's own sentence, which says what is allowed.
    assert [one.text.partition(" is an invalid value")[0] for one in without] == ["<patience>"]


def test_the_page_is_readable():
    lines = page().splitlines()
    assert len([line for line in lines if line.startswith("| ")]) > 500
    assert not [line for line in lines if line.count("`") % 2]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
    assert {len(row) for row in cells} == {2}
