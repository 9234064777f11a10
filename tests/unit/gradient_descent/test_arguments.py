"""Arguments: built from configurations, checked, and translated into Lightning's."""

import functools
import math

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from portico.gradient_descent import (
    ConfigurationError,
    EpochCallback,
    GradientDescentTrainer,
    Lazy,
    Optimizer,
    Trainer,
    from_params,
)
from portico.gradient_descent.arguments import resolve_placement, resolve_precision
from unit.gradient_descent.plain_training import (
    Net,
    PlainTraining,
    assert_same_weights,
    loaders,
    make_optimizer,
    make_trainer,
    weights,
)

LIKE_PLAIN = {"type": "sgd", "lr": 0.1, "momentum": 0.9}


def built(**parts):
    model = Net()
    train, validation = loaders()
    options = {"data_loader": train, "validation_data_loader": validation, "num_epochs": 2, "cuda_device": -1, **parts}
    torch.manual_seed(11)
    return GradientDescentTrainer.from_partial_objects(model, None, **options)


@pytest.mark.parametrize(
    "optimizer",
    [
        LIKE_PLAIN,
        Lazy(Optimizer.by_name("sgd"), lr=0.1, momentum=0.9),
        functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9),
        {"type": "torch.optim.SGD", "lr": 0.1, "momentum": 0.9},
    ],
    ids=["type", "lazy", "partial", "path"],
)
def test_parts_are_built_in_dependency_order(optimizer):
    trainer = built(
        optimizer=optimizer,
        moving_average={"type": "exponential", "decay": 0.3},
        learning_rate_scheduler={"type": "linear_with_warmup", "warmup_steps": 3},
        batch_callbacks=["null"],
        epoch_callbacks=[{"type": "track_epoch_callback"}],
    )
    trainer.train()

    def rate(step):
        return step / 3 * 0.1 if step < 3 else (10 - step) / 7 * 0.1

    plain = PlainTraining(decay=0.3, num_epochs=2, rate=rate).run()
    assert_same_weights(weights(trainer.model), plain.best)
    assert trainer.model.epoch == 2


def test_default_optimizer_is_adam():
    assert type(built().optimizer) is torch.optim.Adam


def test_no_grad_freezes_parameters():
    trainer = built(no_grad=["^inner", "nothing"], moving_average="exponential")
    before = weights(trainer.model)
    trainer.train()
    after = weights(trainer.model)
    assert torch.equal(after["inner.weight"], before["inner.weight"])
    assert not torch.equal(after["outer.weight"], before["outer.weight"])
    assert sum(len(group["params"]) for group in trainer.optimizer.param_groups) == 2
    assert set(trainer.moving_average.state_dict()["shadows"]) == {"outer.weight", "outer.bias"}


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"optimizer": "adamx"}, "'adamx' is not a registered name for Optimizer; did you mean"),
        ({"optimizer": {"type": "adam", "learning_rate": 1}}, "`learning_rate` is not an argument of `Adam`"),
        ({"optimizer": functools.partial(torch.optim.SGD, type="sgd")}, "`type` is not an argument of `SGD`"),
        ({"batch_callbacks": "null"}, "`batch_callbacks='null'` is a str; set it to a list"),
        ({"callbacks": ["wandb"]}, "'wandb' is not a registered name for TrainerCallback"),
        ({"num_epochs": "3"}, "`num_epochs='3'` cannot be used; set it to an int >= 1"),
        ({"learning_rate_scheduler": "cosinus"}, "did you mean 'cosine'"),
        ({"epoch_callbacks": ["track_epoch"]}, "did you mean 'track_epoch_callback'"),
        ({"moving_average": {"decey": 1.0}}, "`decey` is not an argument of `ExponentialMovingAverage`"),
    ],
)
def test_unknown_part_is_refused_before_freezing(parts, match):
    model = Net()
    with pytest.raises(ConfigurationError, match=match):
        GradientDescentTrainer.from_partial_objects(model, None, data_loader=loaders()[0], no_grad=[".*"], **parts)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ({"optimizer": {"type": "adam", "lr": "0.1"}}, "`Adam` cannot be built with lr='0.1' .*correct its config"),
        ({"optimizer": {"type": "adam", "lr": -1}}, r"`Adam` cannot be built with lr=-1 \(Invalid learning rate"),
        ({"optimizer": {"type": "adam", "betas": [0.9]}}, r"`Adam` cannot be built with betas=\[0.9\]"),
        ({"no_grad": "inner"}, "`no_grad='inner'` is a str; set it to a list"),
        ({"no_grad": [".*"]}, "no parameter left to train with `no_grad="),
        ({"no_grad": ["("]}, r"'\(' is not a regular expression"),
        (
            {"optimizer": {"type": "adam", "parameter_groups": [[["inner"], 1.0]]}},
            "`parameter_groups` holds .*; write each group as a list of patterns and a dict of options",
        ),
        ({"moving_average": {"decay": 2.0}}, "`decay=2.0` of the moving average is out of range; set it between"),
        ({"learning_rate_scheduler": {"type": "step", "step_size": 0}}, "'step' got `step_size=0`; set it to 1 epoch"),
        (
            {"learning_rate_scheduler": {"type": "noam", "model_size": 8, "warmup_steps": 0}},
            "'noam' got `model_size=8` and `warmup_steps=0`; set both to an int >= 1",
        ),
        (
            {"learning_rate_scheduler": {"type": "slanted_triangular", "cut_frac": 2.0}},
            "'slanted_triangular' got `cut_frac=2.0` and `ratio=32`; set the first to 0 or more and below 1",
        ),
        ({"learning_rate_scheduler": {"type": "combined", "schedulers": []}}, "'combined' is empty; add at least"),
    ],
)
def test_invalid_value_is_refused(parts, match):
    with pytest.raises(ConfigurationError, match=match):
        built(**parts)


def test_trainer_from_params():
    train, validation = loaders()
    config = {"optimizer": LIKE_PLAIN, "num_epochs": 3, "cuda_device": -1, "validation_metric": ["-loss"]}
    given = {"data_loader": train, "validation_data_loader": validation, "serialization_dir": None}
    trainer = from_params(Trainer, config, model=Net(), **given)
    torch.manual_seed(11)
    trainer.train()
    assert_same_weights(weights(trainer.model), PlainTraining().run().best)
    with pytest.raises(ConfigurationError, match=r"`num_epoch` is not an argument of .*nearest .* are: num_ep"):
        from_params(Trainer, {"num_epoch": 3}, model=Net(), **given)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"patience": 0}, '0 is an invalid value for "patience": it must be a positive integer or None'),
        ({"patience": "3"}, "'3' is an invalid value for"),
        ({"patience": 1.5}, '1.5 is an invalid value for "patience"'),
        ({"validation_metric": "loss"}, r"`validation_metric='loss'` must start with \+ or -"),
        ({"validation_metric": ["-loss", "accuracy"]}, "`validation_metric='accuracy'` must start with"),
        ({"validation_metric": []}, "is an empty list"),
        ({"num_epochs": 0}, "`num_epochs=0` cannot be used; set it to an int >= 1"),
        ({"num_epochs": 1.5}, "`num_epochs=1.5` cannot be used"),
        ({"num_gradient_accumulation_steps": 0}, "`num_gradient_accumulation_steps=0` cannot be used"),
        ({"grad_norm": -1.0}, "`grad_norm=-1.0` is not a limit; set it to a number above 0"),
        ({"grad_clipping": 0.0}, "`grad_clipping=0.0` is not a limit"),
        ({"grad_norm": math.nan}, "`grad_norm=nan` is not a limit; set it to a number above 0 or None"),
        ({"grad_clipping": math.nan}, "`grad_clipping=nan` is not a limit"),
        ({"validation_metric": None}, "`validation_metric=None` does not name a metric; set it to a name with a si"),
        ({"validation_metric": "+"}, r"`validation_metric='\+'` does not name a metric"),
        ({"grad_norm": "1"}, "`grad_norm='1'` is not a limit"),
        ({"grad_clipping": True}, "`grad_clipping=True` is not a limit"),
        ({"world_size": "2", "distributed": True}, "`world_size='2'` cannot be used; set it to an int >= 1"),
        ({"cuda_device": "0"}, "`cuda_device='0'` is a str; set it to the index of a GPU"),
        ({"data_loader": None}, "`data_loader=None` cannot be iterated; pass an iterable of batches"),
        ({"data_loader": 5}, "`data_loader=5` cannot be iterated; pass an iterable of batches"),
        ({"validation_data_loader": []}, "`validation_data_loader` is empty, so there is nothing"),
        ({"optimizer": None}, "`optimizer=None` must be of type Optimizer, not NoneType; .*from_partial_objects"),
        ({"checkpointer": {}}, r"`checkpointer=\{\}` must be of type Checkpointer, not dict; pass one, or build the"),
        ({"learning_rate_scheduler": "step"}, "`learning_rate_scheduler='step'` must be of type LearningRateSchedu"),
        ({"data_loader": []}, "`data_loader` is empty, so there is nothing to train on"),
        ({"callbacks": [EpochCallback()]}, "of AllenNLP 2; callbacks of AllenNLP 1 go to `batch_callb"),
        (
            {"learning_rate_scheduler": StepLR(make_optimizer(Net()), 1)},
            r"`learning_rate_scheduler` \(TorchScheduler\) was made for another optimizer",
        ),
        ({"cuda_device": [0, 1]}, r"`cuda_device=\[0, 1\]` names several devices.*`world_size=2`"),
        ({"cuda_device": 99}, "`cuda_device=99`, but this machine has"),
        ({"distributed": True}, "`distributed=True` with `world_size=1`: .* more than 1 device"),
        ({"opt_level": "O7"}, "Unknown `opt_level='O7'`; expected one of Apex's O0, O1, O2, O3"),
        ({"opt_level": "O1"}, "`opt_level='O1'` means half precision, which requires a CUDA device"),
        ({"use_amp": True, "grad_scaling": False}, "`grad_scaling=False` with `use_amp=True` is not possible"),
        ({"use_amp": True}, "`use_amp=True` means half precision, which requires a CUDA device"),
    ],
)
def test_invalid_arguments_are_refused_before_writing(tmp_path, options, match):
    folder = tmp_path / "run"
    with pytest.raises(ConfigurationError, match=match):
        make_trainer(folder, **options)
    assert not folder.exists()


def test_optimizer_of_another_model_is_announced_and_trains_nothing_as_in_allennlp(tmp_path, caplog):
    trainer = make_trainer(tmp_path / "run", optimizer=make_optimizer(Net()))
    assert "holds no parameter of the model, which it cannot train" in caplog.text
    before = weights(trainer.model)
    trainer.train()
    assert_same_weights(weights(trainer.model), before)


@pytest.mark.parametrize("given", [7, __file__])
def test_invalid_folder_is_refused(given):
    with pytest.raises(ConfigurationError, match=r"`serialization_dir=.*` is not a folder; set it to one that is"):
        make_trainer(given)


def test_unset_patience_is_logged(caplog):
    make_trainer()
    assert (
        "patience was set to None, meaning that early stopping is disabled; set `patience` to enable it" in caplog.text
    )


@pytest.mark.parametrize(
    "options",
    [
        {"grad_norm": math.inf, "grad_clipping": math.inf},
        {"grad_norm": 0, "cuda_device": np.int64(-1)},
        {"grad_norm": np.float32(1e6), "grad_clipping": np.float32(1e6)},
        {"num_gradient_accumulation_steps": np.int64(1), "num_epochs": np.int64(2)},
        {"world_size": 4},
    ],
    ids=lambda options: "-".join(options),
)
def test_arguments_that_allennlp_trains_with(options, tmp_path, caplog):
    plain = make_trainer(tmp_path / "plain", num_epochs=2)
    plain.train()
    trainer = make_trainer(tmp_path / "own", **{"num_epochs": 2, **options})
    trainer.train()
    assert_same_weights(weights(trainer.model), weights(plain.model))
    assert ("`world_size=4` has no effect, and the run has 1 process" in caplog.text) is ("world_size" in options)


def placed(*, cuda_device=-1, distributed=False, world_size=1, **chosen):
    return resolve_placement(cuda_device, distributed, world_size, chosen)


def precision_of(*, opt_level=None, use_amp=False, precision=None, accelerator="cuda"):
    return resolve_precision(opt_level, use_amp, True, precision, accelerator)


def test_placement_in_lightnings_words():
    assert placed() == {"accelerator": "cpu"}
    assert placed(cuda_device=None) == {}
    assert placed(cuda_device=torch.device("cpu")) == {"accelerator": "cpu"}
    assert placed(distributed=True, world_size=3) == {
        "accelerator": "cpu",
        "strategy": "ddp_find_unused_parameters_true",
        "devices": 3,
    }
    assert placed(accelerator="tpu") == {"accelerator": "tpu"}
    # As many on all machines together.
    assert placed(distributed=True, world_size=4, num_nodes=2)["devices"] == 2


def test_precision_in_lightnings_words():
    assert precision_of() == {}
    assert precision_of(opt_level="O0", accelerator="cpu") == {"precision": "32-true"}
    assert precision_of(use_amp=True) == {"precision": "16-mixed"}
    assert precision_of(opt_level="O1", precision="bf16-mixed", accelerator="cpu") == {"precision": "bf16-mixed"}
    with pytest.warns(UserWarning, match=r"`opt_level='O2'` becomes Lightning's `precision='16-mixed'`, which"):
        assert precision_of(opt_level="O2") == {"precision": "16-mixed"}
    with pytest.warns(UserWarning, match="`opt_level='O3'` becomes"):
        assert precision_of(opt_level="O3") == {"precision": "16-true"}


def test_gpu_index(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert placed(cuda_device=1) == {"accelerator": "cuda", "devices": [1]}
    assert placed(cuda_device=torch.device("cuda")) == {"accelerator": "cuda", "devices": [0]}
