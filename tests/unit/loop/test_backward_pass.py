import pytest
import torch

from models import toy_trainer
from portico.loop.module import BackwardPass


@pytest.fixture
def accelerator(tmp_path):
    return toy_trainer(tmp_path).accelerator


@pytest.fixture
def loss():
    return torch.tensor(2.0, requires_grad=True)


def test_backward_runs_at_once_outside_a_run(accelerator, loss):
    accelerator.backward(loss)
    assert loss.grad == 1.0


def test_the_loss_of_a_step_is_kept_for_lightning(accelerator, loss):
    backward = BackwardPass(torch.Tensor.backward, inside_step=False)
    with backward.serving(accelerator):
        accelerator.backward(loss)
    assert loss.grad is None
    assert backward.take_loss() is loss
    accelerator.backward(loss)
    assert loss.grad == 1.0


def test_backward_runs_inside_an_overridden_step_as_often_as_it_is_called(accelerator, loss):
    with BackwardPass(torch.Tensor.backward, inside_step=True).serving(accelerator):
        accelerator.backward(loss)
        accelerator.backward(loss)
    assert loss.grad == 2.0


def test_a_step_runs_backward_exactly_once():
    backward = BackwardPass(torch.Tensor.backward, inside_step=False)
    backward(torch.tensor(1.0))
    with pytest.raises(RuntimeError, match="called twice in one `training_step`"):
        backward(torch.tensor(1.0))
    backward.take_loss()
    with pytest.raises(RuntimeError, match=r"did not call `accelerator\.backward`"):
        backward.take_loss()
