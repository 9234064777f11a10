"""Options: defaults, checks, freezing."""

import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch_emulator as poptorch
from emulator_peers import Calls, Perceptron, batches, options

rules = settings(max_examples=25, deadline=None)


class TestDefaults:
    def test_defaults_are_those_of_poptorch(self):
        options = poptorch.Options()
        assert (options.replication_factor, options.device_iterations, options.input_group_size) == (1, 1, 1)
        assert options.output_mode is poptorch.OutputMode.Default
        assert options.defaultOutputMode()
        assert not options.clone().outputMode(poptorch.OutputMode.All).defaultOutputMode()
        assert options.Training.gradient_accumulation == 1
        assert options.Training.accumulation_and_replication_reduction_type is poptorch.ReductionType.Mean
        assert options.available_memory_proportion == {}
        assert isinstance(options.execution_strategy, poptorch.PipelinedExecution)

    def test_options_from_the_environment(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 3, "Training.gradientAccumulation": 5}')
        monkeypatch.setenv("POPTORCH_CACHE_DIR", "cache")
        options = poptorch.Options()
        assert (options.device_iterations, options.Training.gradient_accumulation) == (3, 5)
        assert options._popart.cachePath == "cache"

    def test_options_from_a_file(self, tmp_path):
        file = tmp_path / "options.conf"
        file.write_text("deviceIterations(2) # a comment\n\noutputMode(poptorch.OutputMode.All)\n")
        options = poptorch.Options().loadFromFile(str(file))
        assert (options.device_iterations, options.output_mode) == (2, poptorch.OutputMode.All)
        file.write_text("setExecutionStrategy(poptorch.ShardedExecution(poptorch.Stage('a').ipu(1)))\n")
        assert poptorch.Options().loadFromFile(str(file)).execution_strategy.stage("a").ipu_id == 1
        file.write_text("deviceIterations(__import__('os').getpid())\n")
        with pytest.raises(poptorch.ConfigFileError, match="line 1"):
            poptorch.Options().loadFromFile(str(file))
        file.write_text("deviceIteration(2)\n")
        with pytest.raises(poptorch.ConfigFileError, match=r"line 1: `deviceIteration\(2\)` cannot be used"):
            poptorch.Options().loadFromFile(str(file))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o: o.deviceIterations(0), "deviceIterations must be an integer greater than 0; 0 was given"),
        (lambda o: o.replicationFactor(1.5), "replicationFactor must be an integer greater than 0"),
        (lambda o: o.Training.gradientAccumulation(True), "gradientAccumulation must be an integer"),
        (lambda o: o.outputMode(3), "outputMode must be of type OutputMode; 3 is int"),
        (lambda o: o.outputMode(poptorch.OutputMode.EveryN), "EveryN output_return_period must be an integer"),
        (lambda o: o.TensorLocations.numIOTiles(30), "numIOTiles must be an even number between 32 and 192; 30 was"),
        (lambda o: o.TensorLocations.numIOTiles(33), "numIOTiles must be an even number between 32 and 192; 33 was"),
        (lambda o: o.TensorLocations.numIOTiles(194), "numIOTiles must be an even number between 32 and 192; 194 was"),
        (lambda o: o.TensorLocations.numIOTiles(64.0), "numIOTiles must be of type int"),
        (lambda o: o.setAvailableMemoryProportion({"CPU0": 0.1}), "takes names like 'IPU0'; 'CPU0' was given"),
        (lambda o: o.setExecutionStrategy("fast"), "setExecutionStrategy must be of type"),
        (lambda o: o.Distributed.configureProcessId(2, 2), "process_id must be from 0 to 1; 2 was given"),
    ],
)
def test_wrong_values_are_refused(call, message):
    with pytest.raises(AssertionError, match=message):
        call(poptorch.Options())


@pytest.mark.parametrize("mode", [mode for mode in poptorch.OutputMode if mode is not poptorch.OutputMode.EveryN])
def test_return_period_of_other_modes_is_ignored(mode, caplog):
    with caplog.at_level("INFO"):
        chosen = poptorch.Options().outputMode(mode, output_return_period=5)
    assert chosen.output_mode is mode
    assert f"`output_return_period=5` has no effect with {mode.name}" in caplog.text


def test_locations_are_on_unless_they_are_turned_off_or_left_open():
    location = poptorch.TensorLocationSettings().useOnChipStorage().useReplicatedTensorSharding()
    location.useIOTilesToLoad().useIOTilesToStore(False)
    assert location.toDict() == {
        "onChip": 1,
        "useReplicatedTensorSharding": 1,
        "useIOTilesToLoad": 1,
        "useIOTilesToStore": 0,
    }
    assert "onChip" not in location.useOnChipStorage(None).toDict()
    with pytest.raises(AssertionError, match="useOnChipStorage must be of type bool"):
        location.useOnChipStorage(1)


@pytest.mark.parametrize("number", [32, 34, 192])
def test_io_tiles_are_stored(number):
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options.TensorLocations.numIOTiles(number)
    assert options.toDict()["numIOTiles"] == number


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.setPartialsType(torch.int8), "setPartialsType takes torch.float32 or torch.float16"),
        (lambda p: p.halfFloatCasting(poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat), "does not support Half"),
    ],
)
def test_number_formats_are_checked(call, message):
    with pytest.raises(ValueError, match=message):
        call(poptorch.Options().Precision)


SETTERS = {
    "deviceIterations": lambda o: o.deviceIterations(2),
    "replicationFactor": lambda o: o.replicationFactor(2),
    "outputMode": lambda o: o.outputMode(poptorch.OutputMode.Sum),
    "randomSeed": lambda o: o.randomSeed(3),
    "Training": lambda o: o.Training.gradientAccumulation(2),
    "Precision": lambda o: o.Precision.enableStochasticRounding(True),
    "TensorLocations": lambda o: o.TensorLocations.numIOTiles(64),
    "Distributed": lambda o: o.Distributed.configureProcessId(0, 2),
    "_Popart": lambda o: o._Popart.set("a", 1),
    "attribute": lambda o: setattr(o, "log_dir", "x"),
}


@given(name=st.sampled_from(sorted(SETTERS)), wraps=st.booleans())
@rules
def test_every_kind_of_option_is_frozen(name, wraps):
    chosen = poptorch.Options()
    kept = poptorch.inferenceModel(Calls(lambda x: x), chosen) if wraps else poptorch.DataLoader(chosen, [1, 2])
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        SETTERS[name](chosen)
    copied = chosen.clone()
    SETTERS[name](copied)
    assert copied != chosen
    assert kept.options.device_iterations == 1


class TestToDict:
    def test_to_dict_has_all_groups(self):
        options = poptorch.Options().outputMode(poptorch.OutputMode.All)
        location = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
        options.TensorLocations.setOptimizerLocation(location)
        options.setAvailableMemoryProportion({"IPU0": 0.2})
        found = options.toDict()
        assert found["location_optimizer"] == {"onChip": 0, "useReplicatedTensorSharding": 1}
        assert found["available_memory_proportion"] == {0: 0.2}
        assert found["gradient_accumulation"] == 1


@pytest.mark.parametrize("spelling", [repr, "poptorch.{0.__class__.__name__}.{0.name}".format, "{0.name}".format])
@pytest.mark.parametrize(
    ("setter", "option", "member"),
    [
        ("connectionType", "connection_type", poptorch.ConnectionType.OnDemand),
        ("syncPattern", "sync_pattern", poptorch.SyncPattern.SinglePipeline),
        ("outputMode", "output_mode", poptorch.OutputMode.Sum),
    ],
)
def test_members_may_be_given_as_strings(spelling, setter, option, member):
    assert getattr(getattr(poptorch.Options(), setter)(spelling(member)), option) is member
    with pytest.raises(AssertionError, match=f"{setter} must be of type {type(member).__name__}; 'Sometimes' is str"):
        getattr(poptorch.Options(), setter)("Sometimes")


def test_compiler_options_take_lists_by_name():
    chosen = poptorch.Options().outputMode(poptorch.OutputMode.All)
    assert chosen._Popart.set("dotChecks", ["Fwd0", "Final"]).dotChecks == ["Fwd0", "Final"]
    with pytest.raises(
        AssertionError, match=r"_Popart.set: the name must be of type str or NoneType; \['a'\] is list"
    ):
        chosen._Popart.set(["a"], True)


def test_unknown_options_are_refused():
    with pytest.raises(AttributeError, match="Options has no option 'speed'; it has anchored_tensors"):
        poptorch.Options().speed  # noqa: B018


def test_anchored_tensors():
    model = Perceptron().half()
    chosen = options(1, 1, 2)
    chosen.Training.setAutomaticLossScaling(True)
    chosen.anchorTensor("gradient", "Gradient___first.weight")
    chosen.anchorTensor("weight", "UpdatedVar___first.weight", poptorch.OutputMode.Final)
    executor = poptorch.trainingModel(model, chosen, poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=4.0))
    before = model.first.weight.detach().clone()
    batch = batches(1, 4, torch.float16)[0]
    executor.compile(*batch)
    assert "UpdatedVar___first.bias" in executor.getTensorNames()
    with pytest.raises(poptorch.Error, match=r"no anchored tensor 'weight'; there are: none yet\."):
        executor.getAnchoredTensor("weight")
    executor(*batch)
    assert torch.equal(executor.getAnchoredTensor("weight"), model.first.weight)
    step = before.float() - model.first.weight.float()
    torch.testing.assert_close(step, 0.1 * executor.getAnchoredTensor("gradient"), atol=1e-3, rtol=0)
    assert executor.getAnchoredTensor("gradient").abs().max() > 0


def test_unknown_anchors_are_refused():
    with pytest.raises(poptorch.Error, match=r"asks for <OutputMode.All: 2>, but .*; use poptorch.OutputMode.Final"):
        poptorch.Options().anchorTensor("a", "Gradient___a", poptorch.OutputMode.All)
    model = poptorch.inferenceModel(Calls(lambda x: x), poptorch.Options().anchorTensor("a", "layer/output"))
    with pytest.raises(poptorch.Error, match="unknown name 'layer/output'; this program has no tensors with names"):
        model(torch.ones(1))


class TestSetters:
    def test_accept_their_parameter_by_name(self):
        chosen = poptorch.Options().deviceIterations(device_iterations=3).broadcastBuffers().modelName(name="a")
        assert (chosen.device_iterations, chosen.broadcast_buffers, chosen.model_name) == (3, True, "a")
        assert str(inspect.signature(chosen.modelName)) == "(name)"

    def test_wrong_numbers_of_arguments_are_refused(self):
        for call in (lambda o: o.deviceIterations(), lambda o: o.deviceIterations(1, 2), lambda o: o.modelName(n="a")):
            with pytest.raises(TypeError, match="argument"):
                call(poptorch.Options())

    def test_subclasses_of_the_options_have_all_of_them(self):
        assert type("Mine", (poptorch.Options,), {})().device_iterations == 1


class TestStoredOptions:
    def test_setters_that_only_store(self):
        options = poptorch.Options().maxRepeatLogs(3).relaxOptimizerAttributesChecks().disableModuleNamescope()
        options.sourceLocationExcludes(["a"]).appendToLocationExcludes("b")
        options.Jit.traceModel(True)
        assert (options.max_repeat_logs, options.relax_optimizer_checks) == (3, True)
        assert options.source_location_excludes == ["a", "b"]

    @pytest.mark.parametrize(("setter", "value"), [("modelName", 3), ("logDir", 3), ("sourceLocationExcludes", "a")])
    def test_values_of_another_type_are_refused(self, setter, value):
        with pytest.raises(AssertionError, match=f"{setter} must be of type"):
            getattr(poptorch.Options(), setter)(value)


STORED = {
    "memory": lambda o: o.setAvailableMemoryProportion({"IPU0": 0.1}),
    "partials": lambda o: o.Precision.setPartialsType(torch.float16),
    "rounding": lambda o: o.Precision.enableStochasticRounding(True),
    "offchip": lambda o: o.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    ),
    "patterns": lambda o: o._Popart.setPatterns({"TiedGather": True}),
    "cache": lambda o: o.enableExecutableCaching("nowhere"),
    "profile": lambda o: o.enableProfiling("nowhere"),
    "synthetic": lambda o: o.enableSyntheticData(True),
}


@given(names=st.sets(st.sampled_from(sorted(STORED))), half=st.booleans())
@rules
def test_stored_options_do_not_change_results(names, half):
    found = []
    for chosen_names in (set(), names):
        model = Perceptron().half() if half else Perceptron()
        chosen = options(1, 2)
        for name in chosen_names:
            STORED[name](chosen)
        executor = poptorch.trainingModel(model, chosen, poptorch.optim.SGD(model.parameters(), lr=0.1))
        executor(*(tensor.to(model.first.weight.dtype) for tensor in batches(1, 2, torch.float32)[0]))
        found.append(model.first.weight.detach().clone())
    assert found[0].dtype is (torch.float16 if half else torch.float32)
    assert torch.equal(*found)
