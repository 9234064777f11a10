"""The classifier of answer types reads the class token, wherever the tokenizer puts it."""

import pytest
import torch

from portico.mrc.models.loading import load_reader
from unit.mrc.models.test_every_model import save_model


@pytest.mark.parametrize(("name", "is_set"), [("bert", False), ("roberta", False), ("xlnet", True), ("llama", True)])
def test_answer_types_do_not_depend_on_padding(name, is_set, tmp_path):
    save_model(name, tmp_path / "model")
    reader = load_reader(str(tmp_path / "model"), "extractive")
    model, tokenizer = reader.model, reader.tokenizer
    assert hasattr(model.config, "class_token_id") is is_set
    model.eval()
    alone = tokenizer(["who?"], ["It was her."], return_tensors="pt")
    padded = tokenizer(
        ["who?", "who was it that came here?"],
        ["It was her.", "It was her, and then him."],
        return_tensors="pt",
        padding=True,
    )
    assert padded["input_ids"].shape[1] > alone["input_ids"].shape[1]
    with torch.no_grad():
        expected, found = (model(**batch).target_type_logits[0] for batch in (alone, padded))
    assert torch.allclose(expected, found, atol=1e-5)


@pytest.mark.parametrize("name", ["xlnet", "llama"])
def test_the_token_that_is_read_sees_the_whole_row(name, tmp_path):
    save_model(name, tmp_path / "model")
    reader = load_reader(str(tmp_path / "model"), "extractive")
    model, tokenizer = reader.model, reader.tokenizer
    model.eval()
    batch = tokenizer(["who?"] * 2, ["It was her.", "It was him."], return_tensors="pt", padding=True)
    with torch.no_grad():
        first, second = model(**batch).target_type_logits
    assert not torch.equal(first, second)
    model.save_pretrained(tmp_path / "saved")
    tokenizer.save_pretrained(tmp_path / "saved")
    again = load_reader(str(tmp_path / "saved")).model
    with torch.no_grad():
        assert torch.equal(again.eval()(**batch).target_type_logits, model(**batch).target_type_logits)
