"""Optimizers on the host, and what a device knows of them."""

import copy

import pytest
import torch

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, largest_difference, options, weights

BATCH = batches(1, 4, torch.float32)[0]
CLASSES = {
    "SGD": (poptorch.optim.SGD, {"momentum": 0.9}),
    "Adam": (poptorch.optim.Adam, {}),
    "AdamW": (poptorch.optim.AdamW, {}),
    "RMSprop": (poptorch.optim.RMSprop, {}),
    "LAMB": (poptorch.optim.LAMB, {}),
}


def training(make=lambda p: poptorch.optim.SGD(p, lr=0.1), model=None):
    model = model or Perceptron()
    optimizer = make(model.parameters())
    return poptorch.trainingModel(model, None, optimizer), optimizer


class TestHyperparameters:
    @pytest.mark.parametrize("name", ["Adam", "AdamW", "RMSprop", "LAMB"])
    def test_hyperparameters_that_were_not_passed_are_constant(self, name):
        executor, optimizer = training(lambda p: CLASSES[name][0](p))
        executor(*BATCH)
        assert optimizer.variable_attrs.isConstant("lr")
        optimizer.param_groups[0]["lr"] = 0.5
        with pytest.raises(poptorch.Error, match="`lr` of parameter group 0 was compiled as the constant"):
            executor.setOptimizer(optimizer)

    def test_attributes_can_be_marked_variable_or_constant(self):
        executor, optimizer = training(lambda p: poptorch.optim.AdamW(p, lr=0.1))
        optimizer.variable_attrs.markAsConstant("lr")
        optimizer.variable_attrs.markAsVariable("betas")
        executor(*BATCH)
        optimizer.param_groups[0]["betas"] = (0.5, 0.5)
        executor.setOptimizer(optimizer)
        optimizer.param_groups[0]["lr"] = 0.5
        with pytest.raises(poptorch.Error, match="compiled as the constant"):
            executor.setOptimizer(optimizer)

    def test_other_classes_and_groups_are_refused_after_compilation(self):
        executor, _ = training()
        executor(*BATCH)
        with pytest.raises(poptorch.Error, match="compiled with SGD and cannot take a AdamW"):
            executor.setOptimizer(poptorch.optim.AdamW(executor.model.parameters(), lr=0.1))
        more = poptorch.optim.SGD([{"params": [p]} for p in executor.model.parameters()], lr=0.1)
        with pytest.raises(poptorch.Error, match="compiled with 1 parameter groups and cannot take 4"):
            executor.setOptimizer(more)

    @pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
    def test_torchs_optimizer_may_take_the_place_of_one_with_the_same_constants(self, name):
        replaced, compiled_so = Perceptron(), Perceptron()
        first = getattr(poptorch.optim, name)(replaced.parameters(), lr=0.1)
        executor = poptorch.trainingModel(replaced, None, None if name == "SGD" else first)
        executor(*BATCH)
        executor.setOptimizer(getattr(torch.optim, name)(replaced.parameters(), lr=0.2))
        executor(*BATCH)
        optimizer = getattr(torch.optim, name)(compiled_so.parameters(), lr=0.01 if name == "SGD" else 0.1)
        executor = poptorch.trainingModel(compiled_so, None, optimizer)
        executor(*BATCH)
        optimizer.param_groups[0]["lr"] = 0.2
        executor.setOptimizer(optimizer)
        executor(*BATCH)
        assert largest_difference(weights(replaced), weights(compiled_so)) == 0

    @pytest.mark.parametrize(
        ("name", "changes", "message"),
        [
            ("SGD", {"momentum": 0.9}, "`momentum` of parameter group 0 was compiled as the constant 0"),
            ("SGD", {"weight_decay": 0.1}, "`weight_decay` of parameter group 0 was compiled as the constant 0"),
            (
                "Adam",
                {"betas": (0.5, 0.9)},
                r"`betas` of parameter group 0 was compiled as the constant \(0.9, 0.999\)",
            ),
            ("AdamW", {"weight_decay": 0.0}, "`weight_decay` of parameter group 0 was compiled as the constant 0.01"),
            ("RMSprop", {"centered": True}, "`centered` of parameter group 0 was compiled as the constant False"),
        ],
    )
    def test_what_torchs_optimizers_leave_at_its_default_is_constant(self, name, changes, message):
        executor, optimizer = training(lambda p: getattr(torch.optim, name)(p, lr=0.1))
        executor(*BATCH)
        optimizer.param_groups[0]["lr"] = 0.0
        executor.setOptimizer(optimizer)
        with pytest.raises(poptorch.Error, match=message):
            executor.setOptimizer(getattr(torch.optim, name)(executor.model.parameters(), lr=0.1, **changes))

    def test_variables_cannot_become_constants(self):
        executor, _ = training(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
        executor(*BATCH)
        with pytest.raises(poptorch.Error, match="`momentum` of parameter group 0 was compiled as a variable"):
            executor.setOptimizer(torch.optim.SGD(executor.model.parameters(), lr=0.1))

    @pytest.mark.parametrize("name", ["loss_scaling", "max_grad_norm"])
    def test_scalars_that_were_not_passed_are_constant(self, name):
        executor, optimizer = training()
        executor(*BATCH)
        setattr(optimizer, name, 2.0)
        with pytest.raises(poptorch.Error, match=f"`{name}` was compiled as the constant"):
            executor.setOptimizer(optimizer)

    def test_inference_has_no_optimizer(self):
        with pytest.raises(poptorch.Error, match="setOptimizer is for training models"):
            poptorch.inferenceModel(Perceptron()).setOptimizer(training()[1])


class TestMeanReduction:
    """Half-precision accumulators hold running means, which cannot overflow, and the executor's options say so."""

    def strategy(self, executor):
        return executor.options.Training.meanAccumulationAndReplicationReductionStrategy

    @pytest.mark.parametrize("name", CLASSES)
    @pytest.mark.parametrize(("accum_type", "expected"), [(torch.float16, "Running"), (torch.float32, "Post")])
    def test_follows_the_accumulators(self, name, accum_type, expected):
        given = options(1, 1, 2)
        executor = poptorch.trainingModel(
            Perceptron(), given, CLASSES[name][0](Perceptron().parameters(), lr=0.1, accum_type=accum_type)
        )
        assert self.strategy(executor).name == expected
        assert given.Training.meanAccumulationAndReplicationReductionStrategy.name == "Post"

    def test_combined_accumulators_hold_sums(self):
        executor, _ = training(lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True))
        assert self.strategy(executor).name == "Post"

    @pytest.mark.parametrize("strategy", list(poptorch.MeanReductionStrategy))
    def test_combined_accumulators_take_either_strategy(self, strategy):
        given = options(1, 1, 2)
        given.Training.setMeanAccumulationAndReplicationReductionStrategy(strategy)
        trained = []
        for combined in (True, False):
            torch.manual_seed(0)
            model = Perceptron()
            optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, use_combined_accum=combined)
            executor = poptorch.trainingModel(model, given, optimizer)
            for batch in batches(3, 2 * 4, torch.float32):
                executor(*batch)
            assert self.strategy(executor) is strategy
            trained.append(weights(executor))
        assert largest_difference(*trained) == 0
        assert largest_difference(trained[0], weights(Perceptron())) > 0

    def test_may_change_until_compilation(self):
        executor, _ = training()
        halves = poptorch.optim.SGD(executor.model.parameters(), lr=0.1, accum_type=torch.float16)
        executor.setOptimizer(halves)
        assert self.strategy(executor).name == "Running"
        with pytest.raises(AttributeError, match="frozen"):
            executor.options.deviceIterations(2)
        executor, _ = training()
        executor(*BATCH)
        with pytest.raises(ValueError, match=r"need MeanReductionStrategy.Running, and the program was compiled"):
            executor.setOptimizer(halves)


class TestConstruction:
    def test_other_accumulator_formats_are_refused(self):
        with pytest.raises(ValueError, match=r"`accum_type=torch.bfloat16` is not supported"):
            training(lambda p: poptorch.optim.SGD(p, lr=1.0, accum_type=torch.bfloat16))

    def test_unsupported_arguments_of_sgd_are_refused(self):
        with pytest.raises(ValueError, match="`maximize` and `differentiable` are not supported"):
            training(lambda p: poptorch.optim.SGD(p, lr=1.0, maximize=True))
        with pytest.raises(ValueError, match="leaves no accumulators to choose types for"):
            training(lambda p: poptorch.optim.SGD(p, lr=1.0, use_combined_accum=True, accum_type=torch.float16))

    def test_bias_correction_of_adamw_is_said_once_to_have_no_effect(self, caplog):
        poptorch.optim._announce_bias_correction.cache_clear()
        for corrects in (True, False, False):
            poptorch.optim.AdamW(Perceptron().parameters(), bias_correction=corrects)
        assert caplog.text.count("`bias_correction=False` of AdamW has no effect") == 1

    @pytest.mark.parametrize(
        ("wrong", "message"), [({"lr": -1.0}, "Invalid lr"), ({"betas": (1.0, 0.9)}, "Invalid betas")]
    )
    def test_invalid_arguments_of_lamb_are_refused(self, wrong, message):
        with pytest.raises(ValueError, match=message):
            training(lambda p: poptorch.optim.LAMB(p, **wrong))

    @pytest.mark.parametrize(
        ("make", "error", "message"),
        [
            (torch.optim.Adagrad, poptorch.Error, "Adagrad is not supported on IPUs; use SGD, Adam"),
            (lambda p: torch.optim.Adam(p, maximize=True), ValueError, "`maximize=True` and `amsgrad=True` are not"),
            (
                lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
                ValueError,
                "Nesterov momentum is currently not supported",
            ),
            (lambda p: torch.optim.AdamW(p, amsgrad=True), ValueError, "`maximize=True` and `amsgrad=True` are not"),
        ],
    )
    def test_unsupported_optimizers_are_refused_before_compilation(self, make, error, message):
        model = Perceptron()
        with pytest.raises(error, match=message):
            poptorch.trainingModel(model, None, make(model.parameters()))
        executor = poptorch.trainingModel(model)
        with pytest.raises(error, match=message):
            executor.setOptimizer(make(model.parameters()))


def test_lamb_steps_on_the_host_as_on_the_device_and_accepts_a_closure():
    host, device = Perceptron(), Perceptron()
    optimizer = poptorch.optim.LAMB(host.parameters(), lr=1e-2)
    executor, _ = training(lambda p: poptorch.optim.LAMB(p, lr=1e-2), device)

    def closure():
        optimizer.zero_grad()
        loss = host(*BATCH)[1]
        loss.backward()
        return loss

    for _ in range(3):
        assert optimizer.step(closure) > 0
        executor(*BATCH)
    assert largest_difference(weights(host), weights(device)) < 1e-6


class TestState:
    @pytest.mark.parametrize("name", CLASSES)
    def test_loaded_state_continues_training(self, name, tmp_path):
        kind, extra = CLASSES[name]

        def make(parameters):
            return kind(parameters, lr=1e-2, **extra)

        whole, _ = training(make)
        for _ in range(4):
            whole(*BATCH)
        first, optimizer = training(make)
        first(*BATCH)
        first(*BATCH)
        torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
        model = Perceptron()
        model.load_state_dict(first.model.state_dict())
        second, resumed = training(make, model)
        resumed.load_state_dict(torch.load(tmp_path / "optimizer.pt", weights_only=True))
        second(*BATCH)
        second(*BATCH)
        assert largest_difference(weights(whole.model), weights(model)) == 0

    def test_state_survives_a_copy(self):
        executor, optimizer = training(lambda p: poptorch.optim.AdamW(p, lr=0.1))
        executor(*BATCH)
        copied = copy.deepcopy(optimizer)
        assert copied.state_dict()["ipu_param"]["num_updates"] == 1

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_moments_keep_their_dtypes(self, dtype):
        executor, optimizer = training(
            lambda p: poptorch.optim.AdamW(p, lr=0.1, first_order_momentum_accum_type=dtype), Perceptron().half()
        )
        executor(*(tensor.half() for tensor in BATCH))
        state = optimizer.state_dict()["ipu_state"]["first.weight"]
        assert state["exp_avg"].dtype is dtype
        assert state["exp_avg_sq"].dtype is torch.float32


def test_lamb_with_max_weight_norm_zero_is_adam():
    adam, lamb = Perceptron(), Perceptron()
    for model, optimizer in (
        (adam, poptorch.optim.Adam(adam.parameters(), lr=1e-2)),
        (lamb, poptorch.optim.LAMB(lamb.parameters(), lr=1e-2, max_weight_norm=0.0, weight_decay=0.0)),
    ):
        executor = poptorch.trainingModel(model, options(2), optimizer)
        executor(*BATCH)
    assert largest_difference(weights(adam), weights(lamb)) < 1e-6
