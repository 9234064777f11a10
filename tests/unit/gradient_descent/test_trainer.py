"""Models, batches and repeated training."""

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

from portico.gradient_descent import ConfigurationError, NoOpTrainer
from unit.gradient_descent.plain_training import (
    Net,
    assert_same_weights,
    loaders,
    make_optimizer,
    make_trainer,
    weights,
)


def test_model_without_loss_is_refused():
    class Lossless(Net):
        def forward(self, x, labels):
            return {"logits": super().forward(x, labels)["logits"]}

    with pytest.raises(RuntimeError, match="does not contain a 'loss' key in the output"):
        make_trainer(model=Lossless()).train()


def test_batch_outputs_can_be_called_directly():
    trainer = make_trainer()
    (batch, *_) = loaders()[0]
    outputs = trainer.batch_outputs(batch, for_training=False)
    assert set(outputs) == {"loss", "logits"}
    outputs["loss"].backward()
    norm = trainer.rescale_gradients()
    assert norm is None


def test_batches_must_be_dicts():
    with pytest.raises(
        ConfigurationError, match="The data loader yielded a list; it must yield dicts of the model's inp"
    ):
        make_trainer(data_loader=[[1, 2]]).train()


def test_validation_needs_a_loader():
    with pytest.raises(ConfigurationError, match="cannot be calculated without a `validation_data_loader`"):
        make_trainer(validation_data_loader=None).loop.evaluate()


@pytest.mark.parametrize("grad_norm", [None, 0.5])
def test_an_optimizer_may_hold_parameters_of_another_module(grad_norm):
    def trained(extra):
        class Scaled(Net):
            def forward(self, x, labels):
                return super().forward(x * extra[0].weight if extra else x, labels)

        model = Scaled()
        parameters = [*model.parameters(), *(extra[0].parameters() if extra else ())]
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        trainer = make_trainer(model=model, optimizer=optimizer, num_epochs=1, grad_norm=grad_norm)
        trainer.train()
        return weights(model)

    extra = nn.Linear(3, 1, bias=False)
    nn.init.ones_(extra.weight)
    with_extra = trained([extra])
    assert not torch.equal(extra.weight, torch.ones(1, 3)), "the optimizer trains it"
    assert not torch.equal(with_extra["inner.weight"], trained([])["inner.weight"]), "and it takes part in each step"


def test_transformers_model():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
    )
    model = BertForSequenceClassification(config)
    tokens = torch.randint(1, 30, (12, 5))
    data = [{"input_ids": row, "labels": row[0] % 2} for row in tokens]
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = make_trainer(
        model=model, optimizer=make_optimizer(model), data_loader=loader, validation_data_loader=loader, num_epochs=6
    )
    metrics = trainer.train()
    assert metrics["best_validation_loss"] < 0.65


def test_speeds_count_examples_and_not_batches():
    batches = [{"x": torch.randn(4, 3), "labels": torch.zeros(4, 1)}] * 3

    def speeds(data_loader):
        trainer = make_trainer(data_loader=data_loader, num_epochs=2)
        trainer.train()
        return trainer.loop.state.log_history[-1]

    rows = [{name: value[0] for name, value in batches[0].items()}] * 12
    measured = speeds(torch.utils.data.DataLoader(rows, batch_size=4))
    assert measured["train_samples_per_second"] == pytest.approx(4 * measured["train_steps_per_second"], rel=0.01)
    assert "train_samples_per_second" not in speeds(batches), "a list does not say how many examples its batches hold"


def test_second_train_starts_from_the_trained_weights():
    trainer = make_trainer(num_epochs=1)
    first = trainer.train()
    second = trainer.train()
    assert second["epoch"] == 0
    assert second["training_loss"] != first["training_loss"]


def test_lightning_objects_are_accessible():
    strategy = SingleDeviceStrategy("cpu")
    trainer = make_trainer(num_epochs=1, cuda_device=None, strategy=strategy, precision="bf16-mixed")
    trainer.train()
    assert isinstance(trainer.lightning_trainer.strategy, SingleDeviceStrategy)
    assert trainer.lightning_trainer.precision == "bf16-mixed"
    assert trainer.module.model is trainer.model
    assert "train" in str(trainer.datamodule)


def test_no_op_trainer_saves_the_model_untrained(tmp_path):
    model = Net()
    assert NoOpTrainer(tmp_path, model).train() == {}
    assert {path.name for path in tmp_path.iterdir()} == {"best.th", "model_state_e0_b0.th", "training_state_e0_b0.th"}
    assert_same_weights(torch.load(tmp_path / "best.th", weights_only=True), weights(model))
    with pytest.raises(ConfigurationError, match=r"already holds a run \(best.th"):
        NoOpTrainer(tmp_path, model).train()
