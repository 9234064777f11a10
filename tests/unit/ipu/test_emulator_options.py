"""Options: defaults, checks, freezing."""

import pytest
import torch

from ipu_peers import Perceptron
from portico.ipu import backend
from portico.ipu import emulator as poptorch
from portico.ipu.emulator.install import uninstall


class TestDefaults:
    def test_are_those_of_poptorch(self):
        options = poptorch.Options()
        assert (options.replication_factor, options.device_iterations, options.input_group_size) == (1, 1, 1)
        assert options.output_mode is poptorch.OutputMode.Default
        assert options.Training.gradient_accumulation == 1
        assert options.Training.accumulation_and_replication_reduction_type is poptorch.ReductionType.Mean
        assert options.available_memory_proportion == {}
        assert isinstance(options.execution_strategy, poptorch.PipelinedExecution)

    def test_can_come_from_the_environment(self, monkeypatch):
        monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", '{"deviceIterations": 3, "Training.gradientAccumulation": 5}')
        monkeypatch.setenv("POPTORCH_CACHE_DIR", "cache")
        options = poptorch.Options()
        assert (options.device_iterations, options.Training.gradient_accumulation) == (3, 5)
        assert options._popart.cachePath == "cache"

    def test_can_come_from_a_file(self, tmp_path):
        file = tmp_path / "options.conf"
        file.write_text("deviceIterations(2) # a comment\n\noutputMode(poptorch.OutputMode.All)\n")
        options = poptorch.Options().loadFromFile(str(file))
        assert (options.device_iterations, options.output_mode) == (2, poptorch.OutputMode.All)
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
        (lambda o: o.outputMode(poptorch.OutputMode.All, 3), "output_return_period belongs to"),
        (lambda o: o.setAvailableMemoryProportion({"CPU0": 0.1}), "takes names like 'IPU0'; 'CPU0' was given"),
        (lambda o: o.setExecutionStrategy("fast"), "setExecutionStrategy must be of type"),
        (lambda o: o.Distributed.configureProcessId(2, 2), "process_id must be from 0 to 1; 2 was given"),
    ],
)
def test_wrong_values_are_refused(call, message):
    with pytest.raises(AssertionError, match=message):
        call(poptorch.Options())


def test_gradients_have_to_become_one():
    with pytest.raises(ValueError, match=r"cannot be ReductionType.NoReduction"):
        poptorch.Options().Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction)


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


class TestFreezing:
    @pytest.mark.parametrize(
        "freeze",
        [
            lambda options: poptorch.inferenceModel(Perceptron(), options),
            lambda options: poptorch.DataLoader(options, [1, 2]),
        ],
    )
    def test_is_done_by_executors_and_loaders(self, freeze):
        options = poptorch.Options()
        kept = freeze(options)
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            options.deviceIterations(2)
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            options.Training.gradientAccumulation(2)
        with pytest.raises(AttributeError, match="Can't modify frozen Options"):
            options.device_iterations = 2
        assert kept.options.device_iterations == 1

    def test_does_not_reach_clones(self):
        options = poptorch.Options()
        options.freeze()
        clone = options.clone()
        assert clone == options
        clone.deviceIterations(2).Training.gradientAccumulation(3)
        assert clone != options
        assert options.device_iterations == 1


class TestToDict:
    def test_has_all_groups(self):
        options = poptorch.Options().outputMode(poptorch.OutputMode.All)
        location = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
        options.TensorLocations.setOptimizerLocation(location)
        options.setAvailableMemoryProportion({"IPU0": 0.2})
        found = options.toDict()
        assert found["location_optimizer"] == {"onChip": 0, "useReplicatedTensorSharding": 1}
        assert found["available_memory_proportion"] == {0: 0.2}
        assert found["gradient_accumulation"] == 1

    def test_needs_an_output_mode(self):
        with pytest.raises(AssertionError, match="An output mode must be picked"):
            poptorch.Options().toDict()


def test_options_that_do_not_exist_are_named():
    with pytest.raises(AttributeError, match="Options has no option 'speed'; it has anchored_tensors"):
        poptorch.Options().speed  # noqa: B018


def test_inference_does_not_accumulate():
    options = poptorch.Options()
    options.Training.gradientAccumulation(2)
    with pytest.raises(poptorch.Error, match=r"gradientAccumulation to 1 or leave it as its default value"):
        poptorch.inferenceModel(Perceptron(), options)


class TestBackend:
    def test_is_the_emulator_where_there_is_no_poptorch(self):
        assert backend.poptorch() is poptorch
        assert backend.Options is poptorch.Options

    def test_the_emulator_can_take_its_place(self):
        with poptorch.installed():
            import poptorch as taken
            from poptorch.optim import AdamW

            assert taken is poptorch
            assert AdamW is poptorch.optim.AdamW
        with pytest.raises(ImportError):
            import poptorch as gone  # noqa: F401
        poptorch.install()
        uninstall()

    def test_one_that_refuses_is_one_clear_message(self, tmp_path, monkeypatch):
        (tmp_path / "poptorch.py").write_text("raise ImportError('needs torch 2.0.1')")
        monkeypatch.syspath_prepend(tmp_path)
        backend.poptorch.cache_clear()
        try:
            with pytest.raises(ValueError, match=r"cannot be imported with torch .*: needs torch 2.0.1\. It is"):
                backend.poptorch()
        finally:
            backend.poptorch.cache_clear()

    def test_no_hardware_is_claimed(self):
        assert not poptorch.ipuHardwareIsAvailable()
        assert poptorch.ipuHardwareVersion() == 2
        assert not poptorch.isRunningOnIpu()
