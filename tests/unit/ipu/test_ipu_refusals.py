"""What would change nothing on IPUs, or something else than asked for, is refused."""

import pytest
import torch

import poptorch_emulator as poptorch
import portico
from ipu_trainers import Sentences, classifier, ipu_arguments, ipu_trainer
from portico.errors import InputError
from portico.ipu.config import IPUConfig


def with_optimizer(output_dir, name, **options):
    model = classifier()
    changes = {"max_grad_norm": options.pop("norm", None)}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1, **options)
    return ipu_trainer(output_dir, None, model, parts={"optimizers": (optimizer, None)}, **changes)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Adam", {"amsgrad": True}, "`amsgrad=True` of Adam has no counterpart on IPUs; leave it out"),
        ("SGD", {"maximize": True}, "`maximize=True` of SGD has no counterpart on IPUs; .* let the loss be negative"),
        ("Adam", {"decoupled_weight_decay": True}, "`decoupled_weight_decay=True` of Adam has no .* use `AdamW`"),
        ("RMSprop", {"norm": 1.0}, "`max_grad_norm=1.0` of RMSprop has no counterpart on IPUs; leave it out of the"),
    ],
)
def test_hyperparameters_without_counterpart(tmp_path, name, options, message):
    with pytest.raises(InputError, match=message):
        with_optimizer(tmp_path, name, **options)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_optimizers_of_torch_are_taken(tmp_path, name):
    assert type(with_optimizer(tmp_path, name).optimizer).__name__ == name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optim": "adafactor"}, "`optim='adafactor'` is not made for IPUs; leave it out for AdamW, set `lamb=True`"),
        (
            {"per_device_train_batch_size": 0},
            "`per_device_train_batch_size=0` cannot be used; set it to an int",
        ),
        ({"per_device_eval_batch_size": "4"}, "`per_device_eval_batch_size='4'` cannot be used"),
        ({"max_grad_norm": -1.0}, "`max_grad_norm=-1.0` cannot be used; set it to a number of 0 or more, or null"),
        ({"loss_scaling": 0.0}, "`loss_scaling=0.0` is no factor; use a number above 0"),
        ({"loss_scaling": "high"}, "`loss_scaling='high'` is no factor"),
        ({"accelerator": "cpu"}, "`accelerator='cpu'` does not choose IPUs; leave it out, or use another trainer"),
        ({"strategy": "ddp"}, "`strategy='ddp'` does not choose IPUs"),
        ({"auto_find_batch_size": True}, "`auto_find_batch_size=True` is not supported on IPUs; .*placement report"),
        ({"precision": "bf16-mixed"}, "`precision='bf16-mixed'` does not choose IPUs; .*`fp32` chooses"),
        ({"devices": 4}, "`devices=4` does not choose IPUs; leave it out; `n_ipu`"),
        ({"num_nodes": 2}, "`num_nodes=2` does not choose IPUs; .* has one host"),
        ({"lamb": True, "max_grad_norm": 1.0}, "`max_grad_norm=1.0` came with LAMB, .* leave one of them out"),
    ],
)
def test_arguments(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        ipu_arguments(tmp_path, **changes)


@pytest.mark.parametrize(("config", "kind"), [({"layers_per_ipu": [1]}, "dict"), ("args", "IPUTrainingArguments")])
def test_something_that_is_no_configuration(tmp_path, config, kind):
    args = ipu_arguments(tmp_path)
    with pytest.raises(
        TypeError, match=rf"`ipu_config` is a {kind}; give a `portico\.IPUConfig`, which stands before"
    ):
        portico.IPUTrainer(classifier(), args if config == "args" else config, args)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        data = Sentences(7)
        yield from (data[index] for index in range(7))


@pytest.mark.parametrize("changes", [{}, {"pad_on_batch_axis": True}, {"dataloader_mode": "async"}])
def test_a_stream_trains_on_full_batches(tmp_path, changes):
    trainer = ipu_trainer(tmp_path, parts={"train_dataset": Stream()}, max_steps=5, **changes)
    assert trainer.train().global_step == 5


def test_an_optimizer_of_another_model(tmp_path):
    other = poptorch.optim.SGD(classifier().parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"not of the `model` that the trainer was given; make it of `model.param"):
        ipu_trainer(tmp_path, parts={"optimizers": (other, None)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"modules": {"bert.nothing": 1}},
            "places the module 'bert.nothing', which BertForSequence",
        ),
        ({"modules": {"classifier": 7}}, "puts classifier on IPU 7; a replica has the IPUs 0 to 1"),
        ({"module": {"classifier": 0}}, "`parallelize_kwargs` has module, and places a model by layers and modules"),
    ],
)
def test_placements_of_nothing(tmp_path, options, message):
    config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, parallelize_kwargs=options)
    with pytest.raises(ValueError, match=message):
        ipu_trainer(tmp_path, config).train()


def test_options_of_other_libraries_are_announced(tmp_path, caplog):
    config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, parallelize_kwargs={"use_cache": True})
    ipu_trainer(tmp_path, config, max_steps=1).train()
    assert "`parallelize_kwargs` has use_cache, which has no effect here" in caplog.text
