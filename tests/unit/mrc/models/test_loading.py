import re
import shutil

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

from damage import Touch
from portico.errors import InputError
from portico.mrc.models.loading import load_reader, load_trained_reader
from portico.mrc.models.small_bert import new_reader

TEXTS = ["Ada lives in Paris.", "Where does Ada live?"]
SHAPE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


@pytest.fixture
def saved(tmp_path):
    reader = new_reader(TEXTS, vocab_size=100, max_length=32, model=SHAPE)
    reader.model.save_pretrained(tmp_path / "reader")
    reader.tokenizer.save_pretrained(tmp_path / "reader")
    return tmp_path / "reader"


def test_a_saved_model_is_loaded_with_its_tokenizer(saved):
    reader = load_reader(str(saved))
    assert reader.max_length == 32
    assert reader.tokenizer.decode(reader.tokenizer("Paris")["input_ids"]) == "[CLS] paris [SEP]"


def test_a_folder_without_tokenizer_is_refused(saved):
    for path in saved.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(InputError, match=rf"`model.name_or_path={re.escape(str(saved))}` holds a model but no tokeni"):
        load_reader(str(saved))


def test_a_tokenizer_larger_than_the_embeddings_is_refused(saved, tmp_path):
    BertForQuestionAnswering(BertConfig(vocab_size=10, **SHAPE)).save_pretrained(tmp_path / "small")
    for path in saved.glob("tokenizer*"):
        shutil.copy(path, tmp_path / "small")
    with pytest.raises(InputError, match=r"a tokenizer of \d+ pieces, but its model has embeddings for 10; repl"):
        load_reader(str(tmp_path / "small"))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("model.safetensors", "{"),
        ("tokenizer.json", "[" * 10_000),  # tokenizers raises a bare `Exception`
        ("tokenizer.json", '{"version": "1.0", "added_tokens": 5, "model": {"type": "WordPiece"}}'),
        ("tokenizer_config.json", '{"tokenizer_class": []}'),
        ("config.json", '{"model_type": "bert", "hidden_size": "large"}'),
        ("config.json", '{"model_type": "bert", "architectures": [5]}'),
        ("config.json", '{"model_type": "bert", "dtype": "Oslo"}'),
        ("config.json", '{"model_type": "bert", "vocab_size": 1e400}'),
    ],
)
def test_a_damaged_file_is_refused(saved, file, text):
    (saved / file).write_text(text)
    for setting in ("model", "model.name_or_path"):
        with pytest.raises(InputError, match=rf"^`{setting}=.*` cannot be loaded as a question answering model"):
            load_trained_reader(str(saved), setting=setting)


def test_pickled_weights_are_not_executed(saved, tmp_path):
    (saved / "model.safetensors").unlink()
    torch.save({"weights": Touch(tmp_path / "touched")}, saved / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be loaded as a question answering model"):
        load_reader(str(saved))
    assert not (tmp_path / "touched").exists()


def test_a_vocabulary_smaller_than_the_alphabet_is_refused():
    with pytest.raises(InputError, match=r"`preprocess\.vocab_size=3` is too small: .* take \d+ pieces"):
        new_reader(TEXTS, vocab_size=3, max_length=32, model=SHAPE)
