"""IPUTrainingArguments: defaults, checks, and what they change in an IPUConfig."""

import logging

import pytest
import transformers

import poptorch_emulator as poptorch
import portico
from ipu_trainers import Sentences, classifier, ipu_arguments, ipu_trainer
from portico.errors import InputError
from portico.ipu.config import IPUConfig


def test_defaults(tmp_path):
    args = portico.IPUTrainingArguments(str(tmp_path))
    assert args.per_device_train_batch_size == args.per_device_eval_batch_size == 1
    assert args.train_batch_size == args.eval_batch_size == 1
    assert args.gradient_accumulation_steps == 1
    assert args.report_to == []
    assert args.logging_nan_inf_filter is False
    assert args.ipu_config_overrides is None
    assert args.device.type == "cpu"
    args = portico.IPUTrainingArguments(
        str(tmp_path),
        eval_strategy="steps",
        gradient_checkpointing=True,
        auto_loss_scaling=True,
        gradient_accumulation_steps=3,
        ipu_config_overrides="device_iterations=2",
    )
    assert args.eval_strategy == "steps"
    assert args.ipu_config_overrides == (
        "device_iterations=2,gradient_accumulation_steps=3,recompute_checkpoint_every_layer=True,auto_loss_scaling=True"
    )


@pytest.mark.parametrize("name", ["IPUTrainingArguments", "IPUSeq2SeqTrainingArguments"])
def test_parsed_from_the_command_line(tmp_path, name):
    parser = transformers.HfArgumentParser(getattr(portico, name))
    line = ["--output_dir", str(tmp_path), "--n_ipu", "4", "--fp32", "--loss_scaling", "8", "--report_to", "none"]
    (args,) = parser.parse_args_into_dataclasses(line)
    assert (args.n_ipu, args.fp32, args.loss_scaling, args.report_to) == (4, True, 8.0, [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bf16": True}, r"`bf16=True` is not supported on IPUs; leave it out"),
        ({"fp16": True}, r"`fp16=True` is not supported on IPUs"),
        ({"torch_compile": True}, "the model is compiled for IPUs anyway"),
        ({"ddp_backend": "gloo"}, "set `replication_factor` of the IPUConfig"),
        ({"n_ipu": 0}, "`n_ipu=0` cannot be used; set it to an int"),
        ({"dataloader_mode": "fast"}, "Unknown `dataloader_mode='fast'`; expected one of sync, async"),
        (
            {"optim": "adafactor"},
            "`optim='adafactor'` does not exist on IPUs; leave it out for AdamW, set",
        ),
        (
            {"per_device_train_batch_size": 0},
            "`per_device_train_batch_size=0` cannot be used; set it to an int",
        ),
        ({"per_device_eval_batch_size": "4"}, "`per_device_eval_batch_size='4'` cannot be used"),
        ({"max_grad_norm": -1.0}, "`max_grad_norm=-1.0` cannot be used; set it to a number of 0 or more, or None"),
        ({"loss_scaling": 0.0}, "`loss_scaling=0.0` cannot be used; set it to a number above 0"),
        ({"loss_scaling": float("inf")}, "`loss_scaling=inf` cannot be used; set it to a number above 0"),
        ({"loss_scaling": "high"}, "`loss_scaling='high'` cannot be used"),
        ({"accelerator": "cpu"}, "`accelerator='cpu'` does not choose IPUs; leave it out, or use another trainer"),
        ({"strategy": "ddp"}, "`strategy='ddp'` does not choose IPUs"),
        ({"auto_find_batch_size": True}, "`auto_find_batch_size=True` is not supported on IPUs; .*placement report"),
        ({"precision": "bf16-mixed"}, "`precision='bf16-mixed'` does not choose IPUs; .*`fp32` chooses"),
        ({"devices": 4}, "`devices=4` does not choose IPUs; leave it out; `n_ipu`"),
        ({"num_nodes": 2}, "`num_nodes=2` does not choose IPUs; .* has one host"),
    ],
)
def test_invalid_values_are_refused(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        ipu_arguments(tmp_path, **changes)


def test_as_in_optimum_graphcore_lamb_leaves_max_grad_norm_out(tmp_path, caplog):
    args = ipu_arguments(tmp_path, lamb=True, max_grad_norm=1.0)
    assert "`max_grad_norm=1.0` has no effect with LAMB" in caplog.text
    trainer = portico.IPUTrainer(classifier(), IPUConfig(), args, train_dataset=Sentences(4))
    assert trainer.train().global_step > 0


def test_number_of_ipus_that_is_no_partition_is_rounded_up_by_poptorch(tmp_path):
    trainer = ipu_trainer(tmp_path, n_ipu=3)
    assert trainer.ipu_config.replication_factor == trainer.opts.replication_factor == 3
    assert trainer.train().global_step > 0


@pytest.mark.filterwarnings("ignore:`include_inputs_for_metrics` is deprecated:FutureWarning")
def test_inputs_can_be_included_for_metrics(tmp_path):
    seen = []

    def metrics(result):
        seen.append(result.inputs.shape)
        return {}

    args = ipu_arguments(tmp_path, include_inputs_for_metrics=True)
    trainer = portico.IPUTrainer(classifier(), IPUConfig(), args, eval_dataset=Sentences(6), compute_metrics=metrics)
    trainer.evaluate()
    assert seen == [(6, 6)]


def test_config_is_copied_and_overridden(tmp_path):
    config = IPUConfig()
    trainer = ipu_trainer(
        tmp_path, config, gradient_accumulation_steps=4, n_ipu=2, ipu_config_overrides="device_iterations=2"
    )
    assert config == IPUConfig()
    found = trainer.ipu_config
    assert (found.gradient_accumulation_steps, found.replication_factor, found.device_iterations) == (4, 2, 2)
    assert found.inference_replication_factor == 2
    assert found.seed == 3
    assert trainer.opts.replication_factor == 2
    assert trainer.eval_opts.output_mode is poptorch.OutputMode.All


def test_config_overrides_take_precedence_over_n_ipu(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        trainer = ipu_trainer(
            tmp_path, IPUConfig(replication_factor=4), n_ipu=2, ipu_config_overrides="replication_factor=1"
        )
    assert trainer.ipu_config.replication_factor == 1
    assert "`n_ipu=2` changes `replication_factor` from 4 to 2" in caplog.text


def test_n_ipu_must_be_a_multiple_of_ipus_per_replica(tmp_path):
    with pytest.raises(ValueError, match="`n_ipu=2` is not a multiple of `ipus_per_replica=4`"):
        ipu_trainer(tmp_path, IPUConfig(layers_per_ipu=[1, 1, 1, 1]), n_ipu=2)


@pytest.mark.parametrize(("config", "kind"), [({"layers_per_ipu": [1]}, "dict"), ("args", "IPUTrainingArguments")])
def test_config_of_the_wrong_type_is_refused(tmp_path, config, kind):
    args = ipu_arguments(tmp_path)
    with pytest.raises(
        TypeError, match=rf"`ipu_config` is a {kind}; give a `portico\.IPUConfig`, which stands before"
    ):
        portico.IPUTrainer(classifier(), args if config == "args" else config, args)
