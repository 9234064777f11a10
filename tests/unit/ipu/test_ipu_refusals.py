"""What would change nothing on IPUs, or something else than asked for, is refused."""

import pytest
import torch

import portico
from ipu_trainers import Sentences, classifier, ipu_arguments, ipu_trainer
from portico.errors import InputError
from portico.ipu import emulator as poptorch


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
