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


def test_the_last_of_several_losses_is_kept(loss):
    backward = BackwardPass(torch.Tensor.backward, inside_step=False)
    backward(loss * 3)
    backward(loss)
    assert loss.grad == 3.0
    assert backward.take_loss() is loss


def test_a_step_calls_backward():
    backward = BackwardPass(torch.Tensor.backward, inside_step=False)
    with pytest.raises(RuntimeError, match=r"did not call `accelerator\.backward`"):
        backward.take_loss()
