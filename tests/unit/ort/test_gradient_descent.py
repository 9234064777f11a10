"""AllenNLP's trainer on ONNX Runtime: averages, clipping, accumulation and recovery stay what they are in torch."""

import pytest
import torch

from portico import ExponentialMovingAverage
from unit.gradient_descent.plain_training import Net, make_trainer

PARTS = {
    "num_epochs": 2,
    "grad_norm": 0.5,
    "grad_clipping": 0.05,
    "num_gradient_accumulation_steps": 2,
}


@pytest.fixture
def trained(tmp_path):
    """Train in torch and in ONNX Runtime from the same start."""

    def train(strategy, **options):
        model = Net()
        average = ExponentialMovingAverage(list(model.named_parameters()), decay=0.9)
        trainer = make_trainer(
            tmp_path / strategy, model=model, moving_average=average, strategy=strategy, **PARTS, **options
        )
        return trainer, trainer.train()

    return train


def test_it_trains_in_onnxruntime_as_in_torch(trained):
    plain, expected = trained("auto")
    ort, found = trained("ort", accelerator="ort")
    for name in ("training_loss", "validation_loss", "best_validation_loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)
    for ours, theirs in zip(ort.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert type(ort.lightning_trainer.strategy).__name__ == "ORTStrategy"
