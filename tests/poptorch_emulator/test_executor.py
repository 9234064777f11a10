"""Executors: weights, optimizers, IPUs, times, files."""

import copy
import gc
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import poptorch_emulator as poptorch
from emulator_peers import Falling, Perceptron, batches, largest_difference, options, weights

rules = settings(max_examples=25, deadline=None)

BATCH = batches(1, 4, torch.float32)[0]


def trained(model=None, optimizer=None, chosen=None):
    model = model or Perceptron()
    optimizer = optimizer or poptorch.optim.SGD(model.parameters(), lr=0.1)
    executor = poptorch.trainingModel(model, chosen, optimizer)
    executor(*BATCH)
    return executor


@pytest.fixture(autouse=True)
def ipus_are_given_back():
    yield
    gc.collect()


class TestWeights:
    def test_changes_on_the_host_have_no_effect_until_they_are_copied(self):
        model = Perceptron()
        executor = poptorch.inferenceModel(model)
        first = executor(BATCH[0])
        with torch.no_grad():
            model.second.bias.add_(1.0)
        assert torch.equal(executor(BATCH[0]), first)
        executor.copyWeightsToDevice()
        assert torch.allclose(executor(BATCH[0]), first + 1.0)

    def test_inference_reads_weights_that_another_executor_trained(self):
        model = Perceptron()
        reader = poptorch.inferenceModel(model)
        before = reader(BATCH[0])
        executor = trained(model)
        assert not torch.equal(reader(BATCH[0]), before)
        executor(*BATCH)
        assert torch.equal(reader(BATCH[0]), model(BATCH[0]))

    def test_modules_reached_through_closures_are_trained(self):
        class Closure(nn.Module):
            def __init__(self):
                super().__init__()
                inner = nn.Linear(3, 2)
                self.inner = inner
                self.apply_inner = lambda x: inner(x)

            def forward(self, x, labels):
                return nn.functional.mse_loss(self.apply_inner(x), labels)

        model = Closure()
        before = model.inner.weight.clone()
        executor = poptorch.trainingModel(model, None, poptorch.optim.SGD(model.parameters(), lr=0.1))
        losses = [float(executor(*BATCH)) for _ in range(3)]
        assert losses == sorted(losses, reverse=True)
        assert not torch.equal(before, model.inner.weight)

    def test_gradients_on_the_host_are_not_touched(self):
        model = Perceptron()
        model.first.weight.grad = torch.ones_like(model.first.weight)
        trained(model)
        assert model.first.weight.grad.sum() == model.first.weight.numel()
        assert model.second.weight.grad is None


ONE = torch.ones(1)


def falling():
    model = Falling()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, poptorch.trainingModel(model, None, optimizer)


@given(st.lists(st.tuples(st.sampled_from([0.25, 0.5, 1.0, 2.0]), st.booleans()), min_size=1, max_size=6))
@rules
def test_learning_rate_takes_effect_with_set_optimizer(changes):
    model, optimizer, executor = falling()
    executor(ONE)
    expected, known = -1.0, 1.0
    for rate, is_passed_on in changes:
        optimizer.param_groups[0]["lr"] = rate
        if is_passed_on:
            executor.setOptimizer(optimizer)
            known = rate
        executor(ONE)
        expected -= known
    assert model.weight.item() == expected


EVENTS = ["train", "edit", "to_device", "to_host", "detach", "attach", "load"]


@given(st.lists(st.sampled_from(EVENTS), max_size=10))
@rules
def test_host_and_device_have_separate_weights_in_any_order_of_events(events):
    model, _, executor = falling()
    executor(ONE)
    host = device = -1.0
    for event in events:
        if event == "train":
            if not executor.isAttachedToDevice():
                device = host
            executor(ONE)
            device -= 1.0
            host = device
        elif event == "edit":
            with torch.no_grad():
                model.weight.fill_(10.0)
            host = 10.0
        elif event == "to_device":
            executor.copyWeightsToDevice()
            device = host
        elif event == "to_host":
            executor.copyWeightsToHost()
            host = device
        elif event == "detach" and executor.isAttachedToDevice():
            executor.detachFromDevice()
        elif event == "attach" and not executor.isAttachedToDevice():
            executor.attachToDevice()
            device = host
        elif event == "load":
            executor.load_state_dict({"weight": torch.tensor(3.0)})
            host = device = 3.0
        assert model.weight.item() == host
    executor.copyWeightsToHost()
    assert model.weight.item() == device


class TestAttachment:
    @pytest.mark.parametrize(
        "use",
        [
            lambda executor: executor.attachToDevice(),
            lambda executor: executor.detachFromDevice(),
            lambda executor: executor.copyWeightsToHost(),
            lambda executor: executor.copyWeightsToDevice(),
            lambda executor: executor.rng_state,
            lambda executor: setattr(executor, "rng_state", [1, 2]),
            lambda executor: executor.save("program.pt"),
        ],
    )
    def test_what_needs_a_compiled_program_is_refused_before(self, use):
        executor = poptorch.trainingModel(Perceptron())
        assert not executor.isCompiled()
        with pytest.raises(poptorch.Error, match="not compiled yet"):
            use(executor)

    def test_offline_programs_do_not_run(self):
        executor = poptorch.trainingModel(Perceptron(), poptorch.Options().useOfflineIpuTarget())
        with pytest.raises(AssertionError, match="offline device"):
            executor(*BATCH)
        assert not executor.isCompiled()
        executor.compile(*BATCH)
        assert executor.isCompiled()
        with pytest.raises(AssertionError, match="offline device"):
            executor(*BATCH)

    def test_compiling_again_is_ignored(self, caplog):
        executor = poptorch.inferenceModel(Perceptron())
        executor.compile(BATCH[0])
        compiled = executor.compiled
        executor.compile(BATCH[0][:2])
        assert executor.compiled is compiled
        assert "Call to compile() ignored: the executable is already compiled" in caplog.text

    @pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
    def test_options_must_be_options(self, wrap):
        with pytest.raises(poptorch.Error, match=r"'options' is of type <class 'dict'> \(Expected poptorch.Options\)"):
            wrap(Perceptron(), {"device_iterations": 2})

    def test_executors_are_shown_as_their_model(self):
        model = Perceptron()
        assert repr(poptorch.inferenceModel(model)) == repr(model)

    def test_number_of_ipus_has_to_be_a_power_of_two(self):
        with pytest.raises(poptorch.Error, match=r"has to be a power of two.*autoRoundNumIPUs\(True\) to take 4"):
            poptorch.inferenceModel(Perceptron(), options(1, 3))(torch.ones(3, 3))
        executor = poptorch.inferenceModel(Perceptron(), options(1, 3).autoRoundNumIPUs())
        executor(torch.ones(3, 3))
        assert executor.compiled.num_ipus == 4

    def test_more_than_64_ipus_are_refused(self):
        with pytest.raises(poptorch.Error, match="needs 128 IPUs"):
            poptorch.inferenceModel(Perceptron(), options(1, 128))(torch.ones(128, 3))


class TestTimes:
    def test_latency_and_cycles_of_the_last_call(self):
        executor = poptorch.inferenceModel(Perceptron(), poptorch.Options().logCycleCount(True))
        executor(BATCH[0])
        least, most, mean = executor.getLatency()
        assert 0 < least <= mean <= most
        assert executor.getComputeLatency() == executor.getLatency()
        assert executor.getHostIpuLatency() == executor.getIpuHostLatency() == (0, 0, 0)
        assert executor.cycleCount() > 0
        counters = executor.getPerfCounters()
        assert counters["output_complete"][0][0] - counters["input"][0][0] == pytest.approx(mean)

    def test_there_are_none_before_a_call(self):
        executor = poptorch.inferenceModel(Perceptron(), poptorch.Options().logCycleCount(True))
        assert executor.getLatency() == executor.getIpuHostLatency() == (0, 0, 0)
        assert set(map(str, executor.getPerfCounters().values())) == {"[[]]"}
        with pytest.raises(poptorch.Error, match="run the model at least once before obtaining cycle count"):
            executor.cycleCount()

    def test_cycle_count_has_to_be_enabled(self):
        executor = poptorch.inferenceModel(Perceptron())
        executor(BATCH[0])
        with pytest.raises(poptorch.Error, match=r"Cycle count logging is disabled. Please set option logCycleCount"):
            executor.cycleCount()


class TestDestroy:
    def test_destroy_is_a_method_of_the_model(self):
        model = Perceptron()
        executor = poptorch.trainingModel(model)
        executor(*BATCH)
        model.destroy()
        assert not executor.isCompiled()
        assert not hasattr(model, "destroy")
        poptorch.trainingModel(model)(*BATCH)

    @pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
    def test_destroy_of_a_copy_does_nothing(self, copied):
        model = Perceptron()
        executor = poptorch.trainingModel(model)
        executor(*BATCH)
        copied(model).destroy()
        assert executor.isCompiled()


def training():
    model = Perceptron(dropout=0.5)
    return poptorch.trainingModel(model, None, poptorch.optim.AdamW(model.parameters(), lr=0.1))


def test_loaded_program_continues_where_it_was_saved(tmp_path):
    whole, saved = training(), training()
    for executor in (whole, saved):
        executor(*BATCH)
    saved.save(tmp_path / "program.pt")
    loaded = poptorch.load(tmp_path / "program.pt")
    assert loaded.isCompiled()
    assert loaded.isAttachedToDevice()
    for executor in (whole, loaded):
        executor(*BATCH)
    assert largest_difference(weights(whole.model), weights(loaded.model)) == 0


def test_programs_that_cannot_be_loaded_are_refused(tmp_path):
    executor = poptorch.inferenceModel(Perceptron())
    executor.compileAndExport(tmp_path / "program.pt", BATCH[0], export_model=False)
    with pytest.raises(poptorch.Error, match=r"contains no model; save it with `export_model=True`.*loadExecutable"):
        poptorch.load(tmp_path / "program.pt")
    content = torch.load(tmp_path / "program.pt", weights_only=False)
    torch.save({**content, "version": "1.0"}, tmp_path / "program.pt")
    with pytest.raises(poptorch.Error, match=r"was written by version 1\.0"):
        poptorch.load(tmp_path / "program.pt")


def test_programs_without_their_model_are_loaded_into_one(tmp_path):
    saved = training()
    saved.compileAndExport(tmp_path / "program.pt", *BATCH, export_model=False)
    loaded = training()
    loaded.loadExecutable(tmp_path / "program.pt")
    assert loaded.isCompiled()
    assert loaded.rng_state == saved.rng_state
    with pytest.raises(poptorch.Error, match="Shape mismatch for x"):
        loaded(*(tensor[:2] for tensor in BATCH))
    for executor in (saved, loaded):
        executor(*BATCH)
    assert largest_difference(weights(saved.model), weights(loaded.model)) == 0


def test_programs_are_saved_in_folders_and_loaded_with_other_options(tmp_path):
    poptorch.inferenceModel(Perceptron()).compileAndExport(tmp_path / "new" / "program.pt", BATCH[0])
    assert torch.equal(poptorch.load(tmp_path / "new" / "program.pt")(BATCH[0]), Perceptron()(BATCH[0]))
    executor = poptorch.inferenceModel(Perceptron())
    executor.compile(BATCH[0])
    executor.save(tmp_path, save_rng_state=False)
    loaded = poptorch.load(tmp_path / "model.poptorch", edit_opts_fn=lambda options: options.deviceIterations(2))
    assert loaded.options.device_iterations == 2


def test_functions_are_refused_as_models():
    with pytest.raises(poptorch.Error, match=r"made of a torch\.nn\.Module, and a function was given"):
        poptorch.inferenceModel(lambda x: x)
