import pytest
import safetensors.torch
import torch
from torch import nn
from transformers import BertConfig, BertForMaskedLM

from models import Line, toy_trainer
from portico.checkpoint import sharded, weights
from portico.checkpoint import weights as adapters
from portico.checkpoint.sharded import load_weight_slices
from portico.checkpoint.weights import load_weights, materialize, save_weights, warn_about_key_mismatch
from portico.errors import InputError, InputRuntimeError


def changed_line():
    model = Line()
    torch.nn.init.constant_(model.linear.weight, 4.0)
    return model


def save(model, folder, **options):
    save_weights(model, model, str(folder), **options)


def save_pickled(model, folder):
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


@pytest.mark.parametrize("store", [save, save_pickled])
def test_weights_are_read(tmp_path, store):
    store(changed_line(), tmp_path)
    model = Line()
    load_weights(model, str(tmp_path))
    assert (model.linear.weight == 4.0).all()


def test_given_state_dict_is_written(tmp_path):
    save(Line(), tmp_path, state_dict=changed_line().state_dict())
    stored = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert (stored["linear.weight"] == 4.0).all()


def tiny_masked_lm():
    return BertForMaskedLM(
        BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    )


def test_sharded_weights_are_read(tmp_path):
    source = tiny_masked_lm()
    source.save_pretrained(tmp_path, max_shard_size="2KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    model = tiny_masked_lm()
    load_weights(model, str(tmp_path))
    assert torch.equal(model.bert.embeddings.word_embeddings.weight, source.bert.embeddings.word_embeddings.weight)


def test_tied_weights_stay_tied_without_warning(tmp_path, caplog):
    source = tiny_masked_lm()
    save(source, tmp_path)
    model = tiny_masked_lm()
    warn_about_key_mismatch(model, load_weights(model, str(tmp_path)))
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert torch.equal(model.cls.predictions.decoder.weight, source.cls.predictions.decoder.weight)
    assert "missing keys" not in caplog.text


def test_key_mismatch_warns(tmp_path, caplog):
    torch.save({"linear.weight": torch.ones(1, 3), "other": torch.ones(1)}, tmp_path / "pytorch_model.bin")
    model = Line()
    warn_about_key_mismatch(model, load_weights(model, str(tmp_path)))
    assert "missing keys in the checkpoint model loaded: ['linear.bias']" in caplog.text
    assert "unexpected keys in the checkpoint model loaded: ['other']" in caplog.text


@pytest.mark.parametrize(("folder", "found"), [("", "it holds no model"), ("gone", "there is no such folder")])
def test_folder_without_weights_is_rejected(folder, found, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=rf"find a valid checkpoint at .*: {found}"):
        load_weights(Line(), str(tmp_path / folder))


def test_folder_of_a_run_names_its_newest_checkpoint(tmp_path):
    for step in (9, 10):
        (tmp_path / f"checkpoint-{step}").mkdir()
    with pytest.raises(InputError, match=r"for example '.*checkpoint-10'"):
        load_weights(Line(), str(tmp_path))


class Adapted(nn.Module):
    """A fake of PEFT's model, which is not a dependency; it records the calls."""

    def __init__(self, active_adapters):
        super().__init__()
        self.active_adapters = active_adapters
        self.calls = []

    def load_adapter(self, folder, name, is_trainable):
        self.calls.append((folder, name, is_trainable))

    def set_adapter(self, name):
        self.calls.append(name)


@pytest.fixture(autouse=True)
def peft(monkeypatch):
    def base_of(model):
        return model.head if isinstance(model, Adapted) else model

    Adapted.head = nn.Linear(1, 1)
    monkeypatch.setattr(adapters, "unwrap_peft_model", base_of)


def write_adapter(folder):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_text("")


def test_plain_model_has_no_adapters():
    assert adapters.has_adapters(Adapted(["default"]))
    assert not adapters.has_adapters(nn.Linear(1, 1))


def test_best_adapters_leave_the_model_in_evaluation_mode(tmp_path, monkeypatch):
    trainer = toy_trainer(tmp_path / "out")
    write_adapter(tmp_path)
    trainer.state.best_model_checkpoint = str(tmp_path)
    monkeypatch.setattr(weights, "has_adapters", lambda model: True)
    monkeypatch.setattr(trainer._portico, "load_weights", lambda model, folder: model.train())
    trainer._load_best_model()
    assert not trainer.model.training


def test_single_adapter_becomes_active(tmp_path):
    write_adapter(tmp_path)
    model = Adapted(["mine"])
    weights.load_weights(model, str(tmp_path))
    assert model.calls == [(str(tmp_path), "mine", True)]


def test_active_adapter_of_several_stays_trainable(tmp_path, caplog):
    write_adapter(tmp_path)
    write_adapter(tmp_path / "second")
    (tmp_path / "logs").mkdir()
    model = Adapted(["second", "default"])
    weights.load_weights(model, str(tmp_path))
    loaded = [(str(tmp_path / "second"), "second", True), (str(tmp_path), "default", False)]
    assert model.calls == [*loaded, "second"]
    assert "only consider the first adapter: 'second'" in caplog.text


def test_folder_without_adapters_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"holds no adapter .* leave it out"):
        weights.load_weights(Adapted(["default"]), str(tmp_path))


def test_weights_of_another_model_are_not_read_in_slices(tmp_path):
    save(tiny_masked_lm(), tmp_path)
    other = Line()
    with pytest.raises(InputError, match=r"the weights of another model than Line: none of its weights is there"):
        load_weight_slices(other, tmp_path)
    wider = BertForMaskedLM(BertConfig(**{**tiny_masked_lm().config.to_dict(), "vocab_size": 77}))
    shapes = r"`bert.embeddings.word_embeddings.weight` has the shape \[20, 8\] there and \[77, 8\] here; set"
    with pytest.raises(InputError, match=shapes):
        load_weight_slices(wider, tmp_path)
    with pytest.raises(InputRuntimeError, match=shapes):
        weights.load_weights(wider, str(tmp_path))


def test_a_model_on_the_meta_device_needs_a_folder_with_weights(tmp_path):
    with torch.device("meta"):
        empty = tiny_masked_lm()
    with pytest.raises(InputError, match=r"on the meta device, without values, .* \(`config.name_or_path=''`\)"):
        materialize(empty)


@pytest.mark.parametrize("size", ["5GB", "2KB"])
def test_files_of_weights_are_those_of_save_pretrained(size, tmp_path, monkeypatch):
    model = tiny_masked_lm()
    model.save_pretrained(tmp_path / "theirs", max_shard_size=size)
    monkeypatch.setattr(sharded, "MAX_SHARD_SIZE", size)
    monkeypatch.setattr(weights, "is_sharded", lambda model: True)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours/model-00001-of-00099.safetensors").touch()  # of an earlier save
    weights.save_weights(model, model, str(tmp_path / "ours"))
    for file in (tmp_path / "ours").iterdir():
        assert file.read_bytes() == (tmp_path / "theirs" / file.name).read_bytes(), file.name
    names = {file.name for file in (tmp_path / "theirs").iterdir()}
    assert {file.name for file in (tmp_path / "ours").iterdir()} == names
    assert ("model.safetensors.index.json" in names) is (size == "2KB")
    copy = tiny_masked_lm()
    result = load_weight_slices(copy, tmp_path / "ours")
    assert set(result.missing_keys) <= set(model.all_tied_weights_keys)
    torch.testing.assert_close(copy.state_dict(), model.state_dict(), rtol=0, atol=0)
