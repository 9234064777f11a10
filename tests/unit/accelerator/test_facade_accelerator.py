import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.utils.data import DataLoader

import portico
from portico.data.loaders import DataLoaderShard
from portico.distributed.accelerator import Accelerator
from unit.toy import Line, toy_trainer


@pytest.fixture
def accelerator():
    strategy = SingleDeviceStrategy(device="cpu")
    return Accelerator(lambda: strategy, {"data_seed": 3})


def test_it_tells_where_the_run_is(accelerator):
    assert accelerator.device == torch.device("cpu")
    assert (accelerator.num_processes, accelerator.process_index, accelerator.local_process_index) == (1, 0, 0)
    assert accelerator.is_main_process
    assert accelerator.is_local_main_process
    accelerator.wait_for_everyone()


def test_it_prints_on_the_main_process(accelerator, capsys):
    accelerator.print("hello")
    assert capsys.readouterr().out == "hello\n"


def test_a_loss_waits_for_lightning_in_a_run_alone(accelerator):
    loss = torch.tensor(2.0, requires_grad=True)
    accelerator.backward(loss)
    assert loss.grad == 1.0
    accelerator.backward_now = None
    accelerator.backward(loss)
    assert loss.grad == 1.0
    assert accelerator.take_deferred_loss() is loss


def test_a_training_step_outside_a_run_leaves_gradients(tmp_path):
    trainer = toy_trainer(tmp_path, max_steps=1)
    batch = next(iter(trainer.get_train_dataloader()))
    for _ in range(2):
        trainer.model.zero_grad()
        for _ in range(2):
            trainer.training_step(trainer.model, batch)
        trainer.evaluate()
        trainer.predict(trainer.eval_dataset)
        assert trainer.model.linear.weight.grad.abs().sum() > 0
        trainer.train()


def test_gradients_are_clipped(accelerator):
    weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    weight.grad = torch.tensor([3.0, 4.0])
    assert accelerator.clip_grad_norm_([weight], 1.0) == pytest.approx(5.0)
    assert weight.grad.norm() == pytest.approx(1.0)


def test_models_come_back_unwrapped(accelerator):
    model = Line()
    assert accelerator.prepare(model) is accelerator.prepare_model(model) is model
    assert accelerator.unwrap_model(torch.nn.DataParallel(model)) is model
    compiled = torch.nn.Module()
    compiled._orig_mod = model
    assert accelerator.unwrap_model(compiled) is model


def test_loaders_are_prepared_with_the_rest(accelerator):
    loader, model = accelerator.prepare(DataLoader(range(4)), Line())
    assert isinstance(loader, DataLoaderShard)
    assert isinstance(model, Line)


def test_on_one_process_results_are_those_of_this_one(accelerator):
    nested = {"a": [torch.ones(2)], "b": (torch.zeros(1),)}
    assert accelerator.gather(nested) is nested
    assert accelerator.pad_across_processes(nested) is nested
    assert accelerator.reduce(nested) is nested


def test_on_one_process_everyone_is_here(accelerator):
    with accelerator.main_process_first(), accelerator.local_main_process_first():
        assert accelerator.is_last_process
    accelerator.end_training()
    assert accelerator.gather_object(["a"]) == ["a"]
    assert accelerator.skip_first_batches([1, 2, 3], 2).num_batches == 2


def test_objects_are_gathered_as_a_list(accelerator):
    loader = accelerator.prepare(DataLoader(range(5), batch_size=4))
    with accelerator.iterating(loader):
        list(loader)
        assert accelerator.gather_for_metrics(["a", "b", "c"]) == ["a"]
        assert accelerator.gather_for_metrics({"a": "b"}) == {"a": "b"}
        assert accelerator.gather_for_metrics(torch.arange(3), use_gather_object=True).tolist() == [0]


def test_examples_that_fill_up_the_last_batch_are_dropped(accelerator):
    loader = accelerator.prepare(DataLoader(range(10), batch_size=4))
    repeated = torch.arange(4.0)
    sizes = []
    with accelerator.iterating(loader):
        for _ in loader:
            sizes.append(len(accelerator.gather_for_metrics(repeated)))
    assert sizes == [4, 4, 2]
    assert len(accelerator.gather_for_metrics(repeated)) == 4


def test_an_inner_evaluation_does_not_disturb_the_outer_one(accelerator):
    outer, inner = (accelerator.prepare(DataLoader(range(size), batch_size=4)) for size in (10, 5))
    with accelerator.iterating(outer):
        next(iter(outer))
        with accelerator.iterating(inner):
            list(inner)
            assert len(accelerator.gather_for_metrics(torch.arange(4))) == 1
        assert len(accelerator.gather_for_metrics(torch.arange(4))) == 4


def test_contexts_do_nothing_in_full_precision(accelerator):
    with accelerator.no_sync(Line()), accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    accelerator.free_memory()


def test_user_code_finds_what_it_calls(tmp_path):
    seen = []

    class Own(portico.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            accelerator = self.accelerator
            with accelerator.no_sync(model), accelerator.autocast():
                loss = self.compute_loss(accelerator.unwrap_model(model), self._prepare_inputs(inputs))
            accelerator.backward(loss / self.current_gradient_accumulation_steps)
            seen.append(accelerator.sync_gradients)
            return accelerator.gather(loss.detach()) / self.current_gradient_accumulation_steps

    toy_trainer(tmp_path, Own, gradient_accumulation_steps=2, num_train_epochs=1).train()
    assert seen == [False, True, False, True, True]
