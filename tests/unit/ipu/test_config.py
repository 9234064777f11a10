"""IPUConfig: attributes, checks, modes, options, files."""

import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch_emulator as poptorch
from portico.ipu.config import ATTRIBUTES, IncompatibleIPUConfigError, IPUConfig

FOUR = {"layers_per_ipu": [1, 2, 3, 4], "ipus_per_replica": 4}


class TestDefaults:
    def test_use_one_ipu(self):
        config = IPUConfig()
        assert (config.layers_per_ipu, config.ipus_per_replica) == ([-1], 1)
        assert (config.inference_layers_per_ipu, config.inference_ipus_per_replica) == ([-1], 1)
        assert config.matmul_proportion == config.inference_matmul_proportion == 0.2
        assert config.gradient_accumulation_steps == config.device_iterations == config.replication_factor == 1
        assert config.optimizer_state_offchip is False
        assert config.output_mode == "final"
        assert config.seed is None
        assert config.embedding_serialization_factor == 1
        assert config.serialized_embedding_splits_per_ipu is None
        assert config.parallelize_kwargs == {}

    def test_ipus_follow_layers(self):
        assert IPUConfig(layers_per_ipu=[1, 2, 3]).ipus_per_replica == 3

    def test_inference_follows_training(self):
        config = IPUConfig(**FOUR, matmul_proportion=[0.1, 0.2, 0.3, 0.4], replication_factor=2)
        assert config.inference_layers_per_ipu == [1, 2, 3, 4]
        assert config.inference_ipus_per_replica == 4
        assert config.inference_matmul_proportion == [0.1, 0.2, 0.3, 0.4]
        assert config.inference_replication_factor == 1

    def test_inference_may_differ(self):
        config = IPUConfig(**FOUR, matmul_proportion=[0.1] * 4, inference_layers_per_ipu=[5, 5])
        assert config.inference_ipus_per_replica == 2
        assert config.inference_matmul_proportion == 0.2

    def test_are_not_shared_between_configs(self):
        IPUConfig().layers_per_ipu.append(3)
        assert IPUConfig().layers_per_ipu == [-1]


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("layers_per_ipu", 3, TypeError, r"Setting `IPUConfig` attribute: `layers_per_ipu` to 3 of type int failed"),
        ("layers_per_ipu", [1.5], TypeError, "must be list.int."),
        ("replication_factor", 0, ValueError, "`replication_factor` must be >= 1; got 0"),
        ("replication_factor", 1.5, TypeError, "of type float failed"),
        ("matmul_proportion", [-0.1], ValueError, "must have all elements >= 0"),
        ("matmul_proportion", float("nan"), ValueError, "must be >= 0; got nan"),
        ("output_mode", "last", ValueError, "`output_mode` must be one of all, sum, final, default; got 'last'"),
        ("optimizer_state_offchip", 1, TypeError, "must be bool"),
        ("serialized_embedding_splits_per_ipu", [0, 0], ValueError, "must have atleast 1 split"),
        ("serialized_embedding_splits_per_ipu", [1, 0, 1], ValueError, "must have its splits on consecutive IPUs"),
        ("mode", "test", ValueError, "`IPUConfig` mode can only take values in"),
    ],
)
def test_every_assignment_is_checked(name, value, error, message):
    config = IPUConfig()
    with pytest.raises(error, match=message):
        setattr(config, name, value)


def test_unknown_attribute_is_set_with_a_warning(caplog):
    config = IPUConfig()
    config.speed = 1
    assert config.speed == 1
    assert "`speed` is not an attribute of IPUConfig, and has no effect on programs; it has auto_loss" in caplog.text
    assert config == IPUConfig()


def test_what_optimum_writes_into_the_file_can_be_given():
    assert (
        IPUConfig(transformers_version="4.29.0", optimum_version="1.6.1", device_iterations=2).device_iterations == 2
    )


def test_is_updated_by_a_dict():
    config = IPUConfig()
    config.update({"device_iterations": 4, "seed": 3})
    assert (config.device_iterations, config.seed) == (4, 3)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers_per_ipu": [1, 2], "ipus_per_replica": 4}, "its length does not match `ipus_per_replica`"),
        ({"matmul_proportion": [0.1, 0.2]}, r"`matmul_proportion` has .* \[0.1, 0.2\] lists 2 IPU"),
        ({**FOUR, "inference_matmul_proportion": [0.1]}, "`inference_matmul_proportion"),
        ({**FOUR, "serialized_projection_splits_per_ipu": [1, 1]}, "`serialized_projection_splits_per_ipu"),
        (
            {**FOUR, "embedding_serialization_factor": 2, "serialized_embedding_splits_per_ipu": [1, 1, 0, 0]},
            "Only one of `embedding_serialization_factor` and `serialized_embedding_splits_per_ipu` can be set",
        ),
        ({"speed": 1}, r"IPUConfig has no attribute\(s\) speed"),
    ],
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(IncompatibleIPUConfigError, match=message):
        IPUConfig(**values)


def test_contradictions_after_construction_are_refused():
    config = IPUConfig(**FOUR)
    with pytest.raises(IncompatibleIPUConfigError, match="length does not match"):
        config.update_from_string("layers_per_ipu=[1 2]")
    assert config.layers_per_ipu == [1, 2, 3, 4], "a refused update leaves everything as it was"
    config.layers_per_ipu = [1, 2]
    with pytest.raises(IncompatibleIPUConfigError, match="length does not match"):
        config.to_options()


def test_deprecated_attributes_warn():
    with pytest.warns(FutureWarning, match="`enable_half_first_order_momentum` of IPUConfig has no effect"):
        IPUConfig(enable_half_first_order_momentum=True)


class TestMode:
    def test_selects_training_or_inference_attributes(self):
        config = IPUConfig(**FOUR, inference_layers_per_ipu=[10], replication_factor=2, gradient_accumulation_steps=8)
        assert config._layers_per_ipu == [1, 2, 3, 4]
        config.eval()
        assert (config._layers_per_ipu, config._ipus_per_replica, config._replication_factor) == ([10], 1, 1)
        assert config._gradient_accumulation_steps == 1
        config._layers_per_ipu = [11]
        assert config.inference_layers_per_ipu == [11]
        assert config.train()._layers_per_ipu == [1, 2, 3, 4]


class TestUpdateFromString:
    def test_parses_by_declared_type(self):
        config = IPUConfig(seed=1)
        config.update_from_string(
            "device_iterations=4, layers_per_ipu=[1 3],ipus_per_replica=2,matmul_proportion=[0.1 1],seed=None,"
            "auto_loss_scaling=yes,executable_cache_dir=a,b,serialized_embedding_splits_per_ipu=[1 1],"
            "embedding_serialization_factor=none"
        )
        assert config.device_iterations == 4
        assert config.layers_per_ipu == [1, 3]
        assert config.matmul_proportion == [0.1, 1.0]
        assert config.seed is None
        assert config.auto_loss_scaling is True
        assert config.executable_cache_dir == "a,b"
        assert config.serialized_embedding_splits_per_ipu == [1, 1]

    def test_sets_attributes_that_were_none(self):
        config = IPUConfig()
        config.update_from_string("seed=0")
        assert config.seed == 0
        assert config.to_options().random_seed == 0

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("speed=1", "Key speed isn't in the original config dict"),
            ("device_iterations=many", "`many` cannot be parsed as the value of `device_iterations`"),
            ("layers_per_ipu=3", "`3` cannot be parsed as the value of `layers_per_ipu`"),
            ("auto_loss_scaling=maybe", "`maybe` cannot be parsed"),
            ("device_iterations", "`device_iterations` sets nothing"),
            ("device_iterations=0", "must be >= 1"),
        ],
    )
    def test_refuses_invalid_strings(self, text, message):
        with pytest.raises(ValueError, match=message):
            IPUConfig().update_from_string(text)


class TestOptions:
    def test_for_training(self):
        config = IPUConfig(**FOUR, replication_factor=2, gradient_accumulation_steps=8, device_iterations=3, seed=7)
        options = config.to_options()
        found = options.toDict()
        assert (found["replication_factor"], found["gradient_accumulation"], found["device_iterations"]) == (2, 8, 3)
        assert found["output_mode"] is poptorch.OutputMode.Final
        assert found["random_seed"] == 7
        assert found["available_memory_proportion"] == dict.fromkeys(range(4), 0.2)
        assert found["location_optimizer"] == {"onChip": 1, "useReplicatedTensorSharding": 0}
        assert isinstance(options.execution_strategy, poptorch.PipelinedExecution)
        assert options.Precision.stochastic_rounding is True
        assert config.mode == "training"

    def test_for_inference(self):
        config = IPUConfig(**FOUR, replication_factor=2, gradient_accumulation_steps=8, inference_device_iterations=5)
        options = config.to_options(for_inference=True)
        found = options.toDict()
        assert (found["replication_factor"], found["gradient_accumulation"], found["device_iterations"]) == (1, 1, 5)
        assert found["output_mode"] is poptorch.OutputMode.All
        assert isinstance(options.execution_strategy, poptorch.ShardedExecution)

    @pytest.mark.parametrize(("replicas", "sharded"), [(1, 0), (2, 1)])
    def test_sharding_needs_replicas(self, replicas, sharded, caplog):
        config = IPUConfig(replication_factor=replicas, replicated_tensor_sharding=True, optimizer_state_offchip=True)
        with caplog.at_level(logging.WARNING):
            location = config.to_options().toDict()["location_optimizer"]
        assert location == {"onChip": 0, "useReplicatedTensorSharding": sharded}
        assert bool(caplog.text) is not bool(sharded)

    def test_can_compile_offline(self):
        assert IPUConfig().to_options(compile_only=True).connection_type is poptorch.ConnectionType.Never

    def test_require_mk2(self, monkeypatch):
        monkeypatch.setattr(poptorch, "ipuHardwareVersion", lambda: 1)
        with pytest.raises(RuntimeError, match=r"This requires an IPU Mk2 system to run\. Set `compile_only=True`"):
            IPUConfig().to_options()

    @pytest.mark.parametrize(("folder", "kept"), [("", False), ("disabled", False), ("cache", True)])
    def test_cache_folder(self, folder, kept):
        assert ("cachePath" in IPUConfig(executable_cache_dir=folder).to_options().toDict()) is kept


class TestFiles:
    def test_round_trip(self, tmp_path):
        config = IPUConfig(**FOUR, seed=0, matmul_proportion=[0.1, 0.2, 0.3, 0.4])
        config.save_pretrained(tmp_path)
        assert IPUConfig.from_pretrained(tmp_path) == config
        assert IPUConfig.from_pretrained(tmp_path / "ipu_config.json") == config
        assert IPUConfig.from_pretrained(tmp_path, seed=5).seed == 5

    def test_ignore_keys_of_other_libraries(self, tmp_path):
        file = tmp_path / "ipu_config.json"
        file.write_text(json.dumps({"optimum_version": "1.6.1", "transformers_version": "4.29", "seed": 3}))
        assert IPUConfig.from_pretrained(tmp_path).seed == 3

    def test_missing_file_is_named(self, tmp_path):
        with pytest.raises(ValueError, match="Name a folder that has one, or make the configuration with"):
            IPUConfig.from_pretrained(tmp_path)

    def test_can_hold_only_differences(self):
        assert json.loads(IPUConfig(seed=3).to_json_string(use_diff=True)) == {"seed": 3}


@given(
    replicas=st.integers(1, 64),
    accumulation=st.integers(1, 1000),
    iterations=st.integers(1, 100),
)
@settings(max_examples=30, deadline=None)
def test_batch_size_factor_is_the_product(replicas, accumulation, iterations):
    config = IPUConfig(
        replication_factor=replicas, gradient_accumulation_steps=accumulation, device_iterations=iterations
    )
    assert config.batch_size_factor() == replicas * accumulation * iterations
    assert config.batch_size_factor(for_inference=True) == 1
    assert IPUConfig.from_dict(config.to_dict()) == config


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_integers_survive_an_override(data):
    name = data.draw(st.sampled_from([name for name, kind in ATTRIBUTES.items() if int in kind.kinds]))
    value = data.draw(st.integers(1, 1000))
    config = IPUConfig(layers_per_ipu=[-1])
    config.update_from_string(f"{name}={value}")
    assert getattr(config, name) == value
