"""AllenNLP's trainer on IPUs, compared with the one on the host."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import portico
from emulator_peers import largest_difference, weights
from models import Points
from portico.errors import InputError
from portico.gradient_descent import GradientDescentTrainer
from portico.gradient_descent.construction import ConfigurationError
from portico.gradient_descent.schedulers import LearningRateScheduler
from portico.ipu.config import IPUConfig
from unit.gradient_descent.plain_training import make_optimizer


class Net(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        torch.manual_seed(5)
        self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 1)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, labels):
        logits = self.outer(self.dropout(torch.tanh(self.inner(x))))
        return {"loss": nn.functional.mse_loss(logits, labels), "logits": logits}


class ByStep(LearningRateScheduler):
    """A different rate in every step, including the first."""

    def get_values(self):
        return [0.1 / self.batch for _ in self.base_values]

    def step_batch(self, batch_num_total=None):
        self.batch = batch_num_total
        self._assign()


def make(trainer_class=portico.IPUGradientDescentTrainer, model=None, rows=4, **options):
    model = Net() if model is None else model
    optimizer = make_optimizer(model)
    schedule = options.pop("schedule", None)
    given = {
        "optimizer": optimizer,
        "data_loader": DataLoader(Points(16), batch_size=rows),
        "validation_data_loader": DataLoader(Points(6, seed=1), batch_size=3),
        "num_epochs": 3,
        "learning_rate_scheduler": None if schedule is None else schedule(optimizer),
        **options,
    }
    return trainer_class(model, **given)


@pytest.mark.parametrize(
    "config", [{}, {"replication_factor": 2}, {"gradient_accumulation_steps": 4, "output_mode": "all"}]
)
@pytest.mark.parametrize(
    "schedule", [None, ByStep, lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]
)
def test_trains_as_on_the_host(config, schedule):
    host = make(GradientDescentTrainer, cuda_device=-1, schedule=schedule)
    expected = host.train()
    ipu = make(schedule=schedule, ipu_config=IPUConfig(**config))
    found = ipu.train()
    assert largest_difference(weights(ipu.model), weights(host.model)) <= 1e-6
    assert found["training_loss"] == pytest.approx(expected["training_loss"], rel=1e-5)
    assert found["best_validation_loss"] == pytest.approx(expected["best_validation_loss"], rel=1e-5)


def test_validation_does_not_train():
    ipu = make(num_epochs=1)
    before = weights(ipu.model)
    ipu.loop.evaluate(metric_key_prefix="validation")
    assert largest_difference(weights(ipu.model), before) == 0


def test_resumed_training_is_bit_identical(tmp_path):
    def trainer(folder, num_epochs):
        # Without validation, the final weights are the last ones, not the best.
        options = {"serialization_dir": tmp_path / folder, "validation_data_loader": None}
        return make(model=Net(dropout=0.4), num_epochs=num_epochs, **options)

    whole = trainer("whole", 4)
    whole.train()
    trainer("parts", 2).train()
    resumed = trainer("parts", 4)
    resumed.train()
    assert largest_difference(weights(resumed.model), weights(whole.model)) == 0


def test_trains_a_pipelined_transformers_model(tmp_path):
    from ipu_trainers import Sentences, classifier

    model = classifier()
    trainer = make(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        data_loader=DataLoader(Sentences(24), batch_size=12),
        validation_data_loader=None,
        ipu_config={"layers_per_ipu": [1, 1], "gradient_accumulation_steps": 3},
        serialization_dir=tmp_path,
        num_epochs=1,
        precision="16-true",
    )
    assert trainer.train()["training_loss"] > 0
    assert len(trainer.loop.placement.stages()) == 2
    assert not trainer.loop.training_model.isAttachedToDevice(), "other runs may use the IPUs"
    assert next(model.parameters()).dtype is torch.float16


class WithMetrics(Net):
    def get_metrics(self, reset=False):
        return {}


class WithPenalty(Net):
    def get_regularization_penalty(self):
        return 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grad_norm": 1.0}, "`grad_norm` needs the gradients on the host.* give the optimizer `max_grad_norm`"),
        ({"grad_clipping": 1.0}, "`grad_clipping` needs the gradients on the host.* clip by the norm"),
        ({"moving_average": object()}, "`moving_average` needs the gradients on the host.* average the weights"),
        ({"model": WithMetrics()}, "WithMetrics has `get_metrics`, .* count them in a batch callback"),
        ({"model": WithPenalty()}, "WithPenalty has `get_regularization_penalty`, .* to the loss in `forward`"),
        ({"num_gradient_accumulation_steps": 2}, "set `gradient_accumulation_steps` of `ipu_config`"),
        ({"devices": 2}, "`devices=2` does not choose IPUs; set `replication_factor`"),
        ({"accelerator": "cpu"}, "`accelerator='cpu'` does not choose IPUs; leave it out"),
        (
            {"precision": "bf16-mixed"},
            "`precision='bf16-mixed'` is not supported on IPUs; use one of 32-true, 16-true",
        ),
        ({"ipu_config": {"replication_factor": 3}}, "The training batches have 4 rows, .* use a multiple of 3"),
        (
            {"data_loader": [{}], "validation_data_loader": None},
            "The batch size of a list is unknown.* give `batch_size`",
        ),
    ],
)
def test_unsupported_options_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(**options)


def test_incomplete_training_batch_is_refused():
    trainer = make(rows=5)
    with pytest.raises(
        InputError, match=r"A batch has 1 rows, but one call of the program that trains takes 5; .*drop"
    ):
        trainer.train()


def test_batch_size_can_be_given_for_loaders_without_one():
    batches = list(DataLoader(Points(8), batch_size=4))
    trainer = make(data_loader=batches, validation_data_loader=None, batch_size=4, num_epochs=1)
    assert trainer.train()["training_loss"] > 0


def test_is_registered_for_configuration_files():
    from portico.gradient_descent.trainer import Trainer

    trainer = Trainer.by_name("ipu_gradient_descent")(
        model=Net(),
        serialization_dir=None,
        data_loader=DataLoader(Points(16), batch_size=4),
        optimizer={"type": "sgd", "lr": 0.1},
        num_epochs=1,
        ipu_config={"replication_factor": 2},
    )
    trainer.train()
    assert trainer.loop.opts.replication_factor == 2


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_the_validation_loss_does_not_depend_on_the_rows_of_a_call(iterations):
    data = Points(7, seed=1)
    config = IPUConfig(inference_device_iterations=iterations)
    loader = DataLoader(data, batch_size=2 * iterations)
    model = Net()
    trainer = make(model=model, validation_data_loader=loader, ipu_config=config, num_epochs=1)
    found = trainer.train()["validation_loss"]
    with torch.no_grad():
        expected = model(**torch.utils.data.default_collate([data[index] for index in range(7)]))["loss"].item()
    assert found == pytest.approx(expected, rel=1e-5)
