import pytest
import safetensors.torch
import torch
from transformers import BertConfig, BertForMaskedLM

from portico.checkpoint.weights import load_weights, save_weights, warn_about_key_mismatch
from portico.errors import InputError
from unit.toy import Line


def changed_line():
    model = Line()
    torch.nn.init.constant_(model.linear.weight, 4.0)
    return model


def save(model, folder, **options):
    save_weights(model, model, str(folder), **{"state_dict": None, "is_main_process": True, **options})


def test_weights_come_back(tmp_path):
    save(changed_line(), tmp_path)
    model = Line()
    load_weights(model, str(tmp_path))
    assert (model.linear.weight == 4.0).all()


def test_given_weights_are_written_instead(tmp_path):
    save(Line(), tmp_path, state_dict=changed_line().state_dict())
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert (stored["linear.weight"] == 4.0).all()


def test_only_the_main_process_writes(tmp_path):
    save(Line(), tmp_path, is_main_process=False)
    assert not list(tmp_path.iterdir())


def test_older_weight_files_are_read(tmp_path):
    torch.save(changed_line().state_dict(), tmp_path / "pytorch_model.bin")
    model = Line()
    load_weights(model, str(tmp_path))
    assert (model.linear.weight == 4.0).all()


def tiny_masked():
    return BertForMaskedLM(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )


def test_sharded_weights_are_read(tmp_path):
    source = tiny_masked()
    source.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = tiny_masked()
    load_weights(model, str(tmp_path))
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, source.bert.embeddings.word_embeddings.weight)


def test_tied_weights_stay_tied_and_are_not_reported(tmp_path, caplog):
    source = tiny_masked()
    save(source, tmp_path)
    model = tiny_masked()
    warn_about_key_mismatch(model, load_weights(model, str(tmp_path)))
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert torch.equal(model.cls.predictions.decoder.weight, source.cls.predictions.decoder.weight)
    assert "missing keys" not in caplog.text


def test_weights_that_do_not_match_are_told(tmp_path, caplog):
    torch.save({"linear.weight": torch.ones(1, 3), "other": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    model = Line()
    warn_about_key_mismatch(model, load_weights(model, str(tmp_path)))
    assert "holds no weights for ['linear.bias']" in caplog.text
    assert "holds weights that the model has not: ['other']" in caplog.text


@pytest.mark.parametrize(("folder", "found"), [("", r"\['notes\.txt'\]"), ("gone", "no such folder")])
def test_a_folder_without_weights_is_refused(folder, found, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=rf"is not a checkpoint.*found: {found}"):
        load_weights(Line(), str(tmp_path / folder))
