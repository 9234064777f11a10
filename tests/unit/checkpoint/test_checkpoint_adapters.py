import pytest
from torch import nn

from portico.checkpoint import weights
from portico.checkpoint import weights as adapters
from portico.errors import InputError


class Adapted(nn.Module):
    """Stands for a model of PEFT, which is no dependency: it writes down what it is asked to do."""

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


def test_only_a_model_around_another_has_adapters():
    assert adapters.has_adapters(Adapted(["default"]))
    assert not adapters.has_adapters(nn.Linear(1, 1))


def test_the_one_adapter_is_loaded_as_the_active_one(tmp_path):
    write_adapter(tmp_path)
    model = Adapted(["mine"])
    weights.load_weights(model, str(tmp_path))
    assert model.calls == [(str(tmp_path), "mine", True)]


def test_of_several_the_active_one_goes_on_learning(tmp_path, caplog):
    write_adapter(tmp_path)
    write_adapter(tmp_path / "second")
    (tmp_path / "logs").mkdir()
    model = Adapted(["second", "default"])
    weights.load_weights(model, str(tmp_path))
    loaded = [(str(tmp_path / "second"), "second", True), (str(tmp_path), "default", False)]
    assert model.calls == [*loaded, "second"]
    assert "training goes on with second" in caplog.text


def test_a_folder_without_adapters_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"holds no adapter .* leave it out"):
        weights.load_weights(Adapted(["default"]), str(tmp_path))
