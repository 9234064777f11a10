import inspect

import torch
from lightning.pytorch.profilers import PassThroughProfiler

from portico.lightning_compat import NullProfiler, UnnormalizedLoss
from unit.toy import toy_trainer


def test_contexts_of_the_empty_profiler_may_be_nested():
    profiler = NullProfiler()
    with profiler.profile("outer"), profiler.profile("inner"):
        profiler.start("action")
        profiler.stop("action")
    assert profiler.summary() == ""


def test_the_empty_profiler_takes_the_place_of_lightnings_own(tmp_path):
    assert isinstance(toy_trainer(tmp_path).lightning_trainer.profiler, NullProfiler)
    for name in ("start", "stop"):
        theirs, ours = (getattr(profiler, name) for profiler in (PassThroughProfiler, NullProfiler))
        assert inspect.signature(ours) == inspect.signature(theirs)


def test_lightning_hands_a_batch_on_as_it_is(tmp_path):
    trainer = toy_trainer(tmp_path)
    batch = {"x": torch.ones(2, 3)}
    seen = []
    step = trainer.module.training_step
    trainer.module.training_step = lambda batch, batch_idx: (seen.append(batch), step(batch, batch_idx))[1]
    trainer.get_batch_samples = _remembering(trainer.get_batch_samples, given := [])
    trainer.train()
    assert [id(batch) for batch in seen] == [id(batch) for batch in given]
    strategy = trainer.lightning_trainer.strategy
    assert strategy.batch_to_device(trainer.module._on_before_batch_transfer(batch)) is batch


def _remembering(get_batch_samples, given):
    def fetch(*args):
        window, num_items = get_batch_samples(*args)
        given.extend(window)
        return window, num_items

    return fetch


def test_a_loss_gets_no_operation_of_its_own():
    loss = torch.tensor(3.0, requires_grad=True) * 2
    result = UnnormalizedLoss.from_training_step_output(loss, normalize=1)
    assert result.closure_loss is loss
    assert not result.loss.requires_grad
