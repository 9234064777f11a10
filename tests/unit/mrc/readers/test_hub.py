import sys

import datasets
import pytest

from portico.errors import InputError, MissingPackageError
from portico.mrc.config import load_examples
from portico.mrc.readers import read_hub

RECORD = {"id": "a", "context": "Oslo", "question": "q", "answers": {"text": ["Oslo"], "answer_start": [0]}}


def test_a_split_of_the_hub_is_read(monkeypatch):
    asked = []

    def load_dataset(*names, split):
        asked.append((*names, split))
        return datasets.Dataset.from_list([RECORD])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (example,) = read_hub("facebook/mlqa", "mlqa.zh.en", "test")
    assert asked == [("facebook/mlqa", "mlqa.zh.en", "test")]
    assert example["language"] == "zh"
    data = {"dataset_name": "squad", "train_split": "train[:1]", "validation_split": "validation"}
    assert len(load_examples(data).train) == 1
    assert asked[1:] == [("squad", None, "train[:1]"), ("squad", None, "validation")]


def test_what_cannot_be_loaded_is_told(monkeypatch):
    def load_dataset(*names, split):
        raise ConnectionError("no connection\nto the hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = r"`data.dataset_name=squad` \(configuration None, split train\) cannot be loaded: no connection to the"
    with pytest.raises(InputError, match=message):
        read_hub("squad", None, "train")


def test_without_the_package_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingPackageError, match="the package datasets is not installed; install it with"):
        read_hub("squad", None, "train")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"train_file": "a.json"}, "`data.dataset_name=squad` and `data.train_file=a.json` both name the questions"),
        ({"format": "squat"}, "`data.format=squat` is no known format"),
    ],
)
def test_settings_that_contradict_are_refused(data, message):
    with pytest.raises(InputError, match=message):
        load_examples({"dataset_name": "squad", "train_split": "train", "validation_split": "validation", **data})
