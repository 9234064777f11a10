"""Training arguments of transformers 4 that another one expresses now, or that mean nothing any more."""

import dataclasses
import warnings

import pytest
import transformers

import portico
from portico.arguments import as_transformers_arguments
from portico.deprecated import RetiredArguments
from unit.toy import toy_trainer


@pytest.fixture
def make(tmp_path):
    return lambda **given: portico.TrainingArguments(
        **{"output_dir": str(tmp_path / "toy"), "report_to": "none", **given}
    )


EXPRESSED = {
    "adafactor": (True, "optim", "adafactor"),
    "dispatch_batches": (False, "accelerator_config", {"dispatch_batches": False}),
    "fsdp_min_num_params": (7, "fsdp_config", {"min_num_params": 7}),
    "fsdp_transformer_layer_cls_to_wrap": ("Layer", "fsdp_config", {"transformer_layer_cls_to_wrap": "Layer"}),
    "group_by_length": (True, "train_sampling_strategy", "group_by_length"),
    "include_inputs_for_metrics": (True, "include_for_metrics", ["inputs"]),
    "push_to_hub_organization": ("us", "hub_model_id", "us/toy"),
    "split_batches": (True, "accelerator_config", {"split_batches": True}),
    "tpu_metrics_debug": (True, "debug", [transformers.debug_utils.DebugOption.TPU_METRICS_DEBUG]),
}
HONOURED = {"logging_dir": "elsewhere", "use_legacy_prediction_loop": True}
WITHOUT_EFFECT = {
    "fp16_backend": "cuda_amp",
    "fp16_opt_level": "O2",
    "half_precision_backend": "cpu_amp",
    "include_tokens_per_second": True,
    "jit_mode_eval": True,
    "mp_parameters": "x",
    "overwrite_output_dir": True,
    "ray_scope": "all",
    "save_safetensors": False,
    "tpu_num_cores": 8,
    "use_ipex": True,
    "use_mps_device": True,
}
REFUSED = {
    "fp16_backend": ("apex", "set `fp16=True`"),
    "half_precision_backend": ("apex", "set `fp16=True`"),
    "past_index": (0, "`training_step` of your own"),
    "sharded_ddp": ("simple", "set `strategy='fsdp'`"),
}


def test_every_retired_argument_is_tested():
    names = {field.name for field in dataclasses.fields(RetiredArguments)}
    assert names == EXPRESSED.keys() | HONOURED.keys() | WITHOUT_EFFECT.keys() | REFUSED.keys()


@pytest.mark.parametrize("name", EXPRESSED)
def test_its_successor_takes_over(name, make):
    value, successor, expected = EXPRESSED[name]
    with pytest.warns(FutureWarning, match=f"`{name}` is deprecated .*; it now sets `{successor}=") as caught:
        args = make(**{name: value})
    assert len(caught) == 1
    assert caught[0].filename == __file__
    actual = getattr(args, successor)
    if isinstance(expected, dict):
        actual = actual if isinstance(actual, dict) else actual.to_dict()
        assert {key: actual[key] for key in expected} == expected
    else:
        assert actual == expected
    assert getattr(args, name) == value


@pytest.mark.parametrize(
    ("name", "successor", "other"),
    [("adafactor", "optim", "sgd"), ("group_by_length", "train_sampling_strategy", "sequential")],
)
def test_a_successor_that_says_something_else_is_refused(name, successor, other, make):
    with pytest.raises(portico.InputError, match=f"`{successor}='{other}'` and `{name}=True` contradict each other"):
        make(**{name: True, successor: other})


def test_what_is_extended_keeps_what_is_there(make):
    with pytest.warns(FutureWarning):
        args = make(include_inputs_for_metrics=True, include_for_metrics=["loss"])
    assert args.include_for_metrics == ["loss", "inputs"]
    with pytest.warns(FutureWarning):
        args = make(push_to_hub_organization="us", hub_model_id="named")
    assert args.hub_model_id == "us/named"


def test_a_configuration_file_is_not_written_into(make):
    with pytest.raises(portico.InputError, match=r"belongs in the configuration that 'fsdp\.json' names"):
        make(fsdp_min_num_params=3, fsdp_config="fsdp.json")


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_has_no_effect_is_announced_once(name, make):
    with pytest.warns(
        FutureWarning, match=f"`{name}` has no effect any more and will be removed in portico 2: "
    ) as caught:
        args = make(**{name: WITHOUT_EFFECT[name]})
    assert len(caught) == 1
    assert getattr(args, name) == WITHOUT_EFFECT[name]


@pytest.mark.parametrize("name", HONOURED)
def test_what_still_works_is_announced_once(name, make):
    with pytest.warns(FutureWarning, match=f"`{name}` is deprecated and will be removed in portico 2; ") as caught:
        make(**{name: HONOURED[name]})
    assert len(caught) == 1


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_any_more_is_refused(name, make):
    value, instead = REFUSED[name]
    with pytest.raises(portico.InputError, match=f"`{name}={value!r}` is no longer supported; .*{instead}"):
        make(**{name: value})


def test_defaults_say_nothing(make):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        args = make(**{field.name: field.default for field in dataclasses.fields(RetiredArguments)})
    assert not args.to_dict().keys() & RetiredArguments.__annotations__.keys()


def test_saved_arguments_hold_none_of_them(make):
    with pytest.warns(FutureWarning):
        plain = as_transformers_arguments(make(use_ipex=True))
    assert not vars(plain).keys() & RetiredArguments.__annotations__.keys()


def test_a_parser_takes_them(tmp_path):
    parser = transformers.HfArgumentParser((portico.TrainingArguments,))
    line = ["--output_dir", str(tmp_path), "--report_to", "none", "--overwrite_output_dir", "--group_by_length"]
    with pytest.warns(FutureWarning):
        (args,) = parser.parse_args_into_dataclasses(line)
    assert args.overwrite_output_dir
    assert args.train_sampling_strategy == "group_by_length"


def test_the_logging_folder_is_used(tmp_path):
    pytest.importorskip("tensorboard")
    folder = tmp_path / "elsewhere"
    with pytest.warns(FutureWarning, match="`logging_dir` is deprecated"):
        toy_trainer(tmp_path, report_to="tensorboard", logging_dir=str(folder)).train()
    assert list(folder.glob("events*"))


def test_the_older_loop_is_run_where_a_subclass_has_one(tmp_path):
    class Older(portico.Trainer):
        def prediction_loop(self, dataloader, description, *args, **kwargs):
            self.ran = description
            return self.evaluation_loop(dataloader, description, *args, **kwargs)

    with pytest.warns(FutureWarning, match="`use_legacy_prediction_loop` is deprecated"):
        trainer = toy_trainer(tmp_path, Older, use_legacy_prediction_loop=True)
    trainer.evaluate()
    assert trainer.ran == "Evaluation"
    trainer.predict(trainer.eval_dataset)
    assert trainer.ran == "Prediction"
    plain = toy_trainer(tmp_path, Older)
    plain.evaluate()
    assert not hasattr(plain, "ran")
