"""Arguments, patience, checkpoints on disk, placement."""

import os
import time

import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch.optim.lr_scheduler import StepLR
from transformers import BertConfig, BertForSequenceClassification

from portico.errors import InputError
from portico.gradient_descent import Checkpointer, ConfigurationError, MetricTracker
from portico.gradient_descent.arguments import lightning_placement, lightning_precision
from portico.gradient_descent.batches import count_epochs
from portico.gradient_descent.checkpointer import Retention
from unit.gradient_descent.plain_training import Net, loaders, make_optimizer, make_trainer


class Scripted(Net):
    """A model whose validation accuracy follows a script."""

    def __init__(self, accuracies):
        super().__init__()
        self.accuracies = iter(accuracies)

    def get_metrics(self, reset=False):
        accuracy = next(self.accuracies) if reset and not self.training else 0.0
        return {"accuracy": accuracy, "other": -accuracy}


@pytest.mark.parametrize(
    ("metric", "patience", "accuracies", "best", "last"),
    [
        ("+accuracy", 2, [0.1, 0.5, 0.4, 0.5, 0.9], 1, 3),
        ("-accuracy", 2, [0.3, 0.2, 0.4, 0.1, 0.2, 0.3, 0.0], 3, 5),
        ("+accuracy", 1, [0.5, 0.5, 0.9], 0, 1),
        ("+accuracy", None, [0.5, 0.4, 0.3], 0, 2),
        (["+accuracy", "-other"], 1, [0.1, 0.2, 0.1], 1, 2),
        ("+accuracy", 1, [float("nan"), 0.9, 0.9], 0, 1),
    ],
)
def test_patience(tmp_path, metric, patience, accuracies, best, last):
    trainer = make_trainer(
        tmp_path,
        model=Scripted(accuracies),
        num_epochs=len(accuracies),
        validation_metric=metric,
        patience=patience,
    )
    metrics = trainer.train()
    assert (metrics["best_epoch"], metrics["epoch"]) == (best, last)
    assert metrics["validation_accuracy"] == accuracies[last]
    # The epoch that used up the patience is recorded too.
    assert (tmp_path / f"metrics_epoch_{last}.json").is_file()
    assert not (tmp_path / f"metrics_epoch_{last + 1}.json").exists()
    assert (tmp_path / f"model_state_e{last + 1}_b0.th").is_file()


def test_the_metrics_have_allennlps_keys():
    metrics = make_trainer(num_epochs=2).train()
    names = {"loss", "count"}
    assert set(metrics) == {
        "best_epoch",
        "peak_worker_0_memory_MB",
        "training_duration",
        "training_start_epoch",
        "training_epochs",
        "epoch",
        "training_worker_0_memory_MB",
        *(f"{kind}_{name}" for kind in ("training", "validation", "best_validation") for name in names),
    }
    assert metrics["training_count"] == 10.0
    assert metrics["validation_count"] == 6.0
    assert metrics["training_duration"].startswith("0:00:0")
    assert metrics["training_worker_0_memory_MB"] > 50


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
        (
            {"validation_metric": None},
            "`validation_metric=None` does not name a metric; set it to a name with a sign, as '-loss'",
        ),
        ({"validation_metric": "+"}, r"`validation_metric='\+'` does not name a metric"),
        ({"grad_norm": "1"}, "`grad_norm='1'` is not a limit"),
        ({"grad_clipping": True}, "`grad_clipping=True` is not a limit"),
        ({"world_size": "2", "distributed": True}, "`world_size='2'` cannot be used; set it to an int >= 1"),
        ({"cuda_device": "0"}, "`cuda_device='0'` is a str; set it to the index of a GPU"),
        ({"data_loader": None}, "`data_loader=None` is a NoneType; give an iterable of batches"),
        ({"data_loader": 5}, "`data_loader=5` is a int; give an iterable of batches"),
        ({"validation_data_loader": []}, "`validation_data_loader` is empty, so there is nothing"),
        ({"optimizer": None}, "`optimizer=None` is a NoneType; give a Optimizer, or build .*from_partial_objects"),
        ({"optimizer": make_optimizer(Net())}, r"`optimizer` \(SGD\) holds no parameter of `model`"),
        ({"checkpointer": {}}, r"`checkpointer=\{\}` is a dict; give a Checkpointer, or build the trainer with"),
        ({"learning_rate_scheduler": "step"}, "`learning_rate_scheduler='step'` is a str; give a LearningRateSche"),
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
def test_bad_arguments_are_refused_before_anything_is_written(tmp_path, options, match):
    folder = tmp_path / "run"
    with pytest.raises(ConfigurationError, match=match):
        make_trainer(folder, **options)
    assert not folder.exists()


def test_an_error_of_a_configuration_is_a_value_error():
    assert issubclass(ConfigurationError, InputError)
    assert issubclass(ConfigurationError, ValueError)


def test_a_metric_that_never_appears_is_told_after_the_first_epoch(tmp_path):
    trainer = make_trainer(tmp_path, validation_metric="+f1")
    with pytest.raises(
        ConfigurationError, match=r"use the f1 metric for early stopping, but the model did not .* one of: count, loss"
    ):
        trainer.train()
    assert not list(tmp_path.glob("*.th"))


def test_a_model_without_a_loss_is_refused():
    class Lossless(Net):
        def forward(self, x, labels):
            return {"logits": super().forward(x, labels)["logits"]}

    with pytest.raises(RuntimeError, match="does not contain a 'loss' key in the output"):
        make_trainer(model=Lossless()).train()


def test_validation_may_have_no_loss():
    class LossOfTraining(Net):
        def forward(self, x, labels):
            outputs = super().forward(x, labels)
            return outputs if self.training else {"logits": outputs["logits"]}

    metrics = make_trainer(model=LossOfTraining(), num_epochs=1).train()
    assert metrics["validation_loss"] == 0.0


def test_a_batch_can_be_run_by_hand():
    trainer = make_trainer()
    (batch, *_) = loaders()[0]
    outputs = trainer.batch_outputs(batch, for_training=False)
    assert set(outputs) == {"loss", "logits"}
    outputs["loss"].backward()
    norm = trainer.rescale_gradients()
    assert norm is None


@pytest.mark.parametrize("given", [7, __file__])
def test_a_folder_that_is_none_is_refused(given):
    with pytest.raises(
        ConfigurationError, match=r"`serialization_dir=.*` is not a folder; set it to one that is empty"
    ):
        make_trainer(given)


def test_batches_must_be_dicts():
    with pytest.raises(ConfigurationError, match="The data loader gave a list; let it give dicts of the model's inp"):
        make_trainer(data_loader=[[1, 2]]).train()


def test_every_process_needs_a_batch():
    with pytest.raises(ConfigurationError, match="`data_loader` has fewer batches than the 2 processes"):
        count_epochs([], num_epochs=1, num_gradient_accumulation_steps=1, world_size=2)


def test_an_empty_loader_is_refused():
    with pytest.raises(ConfigurationError, match="`data_loader` is empty, so there is nothing to train on"):
        make_trainer(data_loader=[]).train()


def test_validation_needs_a_loader():
    with pytest.raises(ConfigurationError, match="cannot be calculated without a `validation_data_loader`"):
        make_trainer(validation_data_loader=None).loop.evaluate()


def test_patience_unset_is_announced(caplog):
    make_trainer()
    assert "patience was set to None, meaning that early stopping is disabled" in caplog.text


def test_a_model_of_transformers():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=2
    )
    model = BertForSequenceClassification(config)
    tokens = torch.randint(1, 30, (12, 5))
    data = [{"input_ids": row, "labels": row[0] % 2} for row in tokens]
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    trainer = make_trainer(
        model=model, optimizer=make_optimizer(model), data_loader=loader, validation_data_loader=loader, num_epochs=6
    )
    metrics = trainer.train()
    assert metrics["best_validation_loss"] < 0.65


def test_training_twice_goes_on_from_the_weights():
    trainer = make_trainer(num_epochs=1)
    first = trainer.train()
    second = trainer.train()
    assert second["epoch"] == 0
    assert second["training_loss"] != first["training_loss"]


def test_lightning_is_at_hand():
    strategy = SingleDeviceStrategy("cpu")
    trainer = make_trainer(num_epochs=1, cuda_device=None, strategy=strategy, precision="bf16-mixed")
    trainer.train()
    assert isinstance(trainer.lightning_trainer.strategy, SingleDeviceStrategy)
    assert trainer.lightning_trainer.precision == "bf16-mixed"
    assert trainer.module.model is trainer.model
    assert "train" in str(trainer.datamodule)


def placed(*, cuda_device=-1, distributed=False, world_size=1, accelerator=None):
    return lightning_placement(cuda_device, distributed, world_size, {"accelerator": accelerator})


def precision_of(*, opt_level=None, use_amp=False, precision=None, accelerator="cuda"):
    return lightning_precision(opt_level, use_amp, True, precision, accelerator)


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


def test_precision_in_lightnings_words():
    assert precision_of() == {}
    assert precision_of(opt_level="O0", accelerator="cpu") == {"precision": "32-true"}
    assert precision_of(use_amp=True) == {"precision": "16-mixed"}
    assert precision_of(opt_level="O1", precision="bf16-mixed", accelerator="cpu") == {"precision": "bf16-mixed"}
    with pytest.warns(UserWarning, match=r"`opt_level='O2'` becomes Lightning's `precision='16-mixed'`, which"):
        assert precision_of(opt_level="O2") == {"precision": "16-mixed"}
    with pytest.warns(UserWarning, match="`opt_level='O3'` becomes"):
        assert precision_of(opt_level="O3") == {"precision": "16-true"}


def test_a_gpu_by_its_index(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert placed(cuda_device=1) == {"accelerator": "cuda", "devices": [1]}
    assert placed(cuda_device=torch.device("cuda")) == {"accelerator": "cuda", "devices": [0]}


def points(folder):
    return sorted(path.name[len("model_state_") : -len(".th")] for path in folder.glob("model_state_*.th"))


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, ["e2_b0", "e3_b0"]),
        ({"keep_most_recent_by_count": 1}, ["e3_b0"]),
        ({"keep_most_recent_by_count": None}, ["e1_b0", "e2_b0", "e3_b0"]),
        ({"keep_most_recent_by_count": 0}, []),
        ({"keep_most_recent_by_count": None, "keep_most_recent_by_age": 3600}, ["e1_b0", "e2_b0", "e3_b0"]),
        ({"keep_most_recent_by_count": 1, "keep_most_recent_by_age": 3600}, ["e1_b0", "e2_b0", "e3_b0"]),
        ({"keep_most_recent_by_count": 1, "keep_most_recent_by_age": 0}, ["e3_b0"]),
        ({"save_completed_epochs": False}, []),
        (
            {"save_every_num_batches": 2, "keep_most_recent_by_count": None, "save_completed_epochs": False},
            ["e0_b2", "e0_b4", "e1_b2", "e1_b4", "e2_b2", "e2_b4"],
        ),
        ({"save_every_num_batches": 3, "keep_most_recent_by_count": 3}, ["e2_b0", "e2_b3", "e3_b0"]),
    ],
)
def test_what_is_saved_and_kept(tmp_path, options, kept):
    make_trainer(tmp_path, checkpointer=Checkpointer(tmp_path, **options)).train()
    assert points(tmp_path) == kept
    assert sorted(path.name for path in tmp_path.glob("training_state_*")) == [f"training_state_{p}.th" for p in kept]
    assert (tmp_path / "best.th").is_file()
    assert not list(tmp_path.glob(".*"))


def test_saving_by_time(tmp_path):
    checkpointer = Checkpointer(tmp_path, save_every_num_seconds=0, keep_most_recent_by_count=None)
    make_trainer(tmp_path, num_epochs=1, checkpointer=checkpointer).train()
    assert points(tmp_path) == ["e0_b1", "e0_b2", "e0_b3", "e0_b4", "e0_b5", "e1_b0"]
    trainer = make_trainer(tmp_path / "b", num_epochs=1)
    rarely = Checkpointer(tmp_path / "b", save_every_num_seconds=3600)
    assert not rarely.maybe_save_checkpoint(trainer, 0, 3)
    rarely._last_save_time -= 3601
    assert rarely.maybe_save_checkpoint(trainer, 0, 3)


def test_the_names_of_allennlp_1(tmp_path):
    with pytest.warns(FutureWarning, match="`num_serialized_models_to_keep` .* is called `keep_most_recent_by_count`"):
        checkpointer = Checkpointer(tmp_path, num_serialized_models_to_keep=-1)
    make_trainer(tmp_path, checkpointer=checkpointer).train()
    assert points(tmp_path) == ["e1_b0", "e2_b0", "e3_b0"]
    with pytest.warns(FutureWarning, match="`model_save_interval` of the checkpointer is called `save_every_num_sec"):
        Checkpointer(tmp_path, model_save_interval=60.0)


def test_one_is_kept_for_good_now_and_then():
    retention = Retention(count=1, every=100)
    start = time.time()
    times = {"a": start + 10, "b": start + 150, "c": start + 200, "d": start + 260, "e": start + 270}
    kept = []
    for point in times:
        kept.append(point)
        for removed in retention.expired([(one, times[one]) for one in kept]):
            kept.remove(removed)
    assert kept == ["b", "d", "e"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"save_every_num_batches": "2"}, "`save_every_num_batches='2'` of the checkpointer cannot be used"),
        ({"save_every_num_batches": 0}, "`save_every_num_batches=0` of the checkpointer cannot be used; set it to 1"),
        ({"keep_most_recent_by_count": -2}, "`keep_most_recent_by_count=-2` .* set it to 0 or more"),
    ],
)
def test_a_wrong_checkpointer_is_refused(tmp_path, options, match):
    with pytest.raises(ConfigurationError, match=match):
        Checkpointer(tmp_path, **options)


def test_several_processes_do_not_save_by_the_clock(tmp_path):
    Checkpointer(tmp_path, save_every_num_batches=5).check_processes(2)
    with pytest.raises(ConfigurationError, match=r"`save_every_num_seconds=60` .* not supported in distributed tra"):
        Checkpointer(tmp_path, save_every_num_seconds=60).check_processes(2)


def test_the_latest_checkpoint_is_the_furthest(tmp_path):
    make_trainer(tmp_path, checkpointer=Checkpointer(tmp_path, save_every_num_batches=2)).train()
    # What was touched last does not matter.
    os.utime(tmp_path / "model_state_e2_b4.th")
    assert Checkpointer(tmp_path).find_latest_checkpoint()[0].endswith("model_state_e3_b0.th")
    assert Checkpointer(tmp_path / "empty").find_latest_checkpoint() is None
    assert Checkpointer().load_checkpoint() is None


def test_the_tracker_goes_on_from_its_state():
    tracker = MetricTracker("-loss", patience=2)
    tracker.add_metrics({"loss": 1.0})
    tracker.add_metrics({"loss": 2.0})
    later = MetricTracker("-loss", patience=2)
    later.load_state_dict(tracker.state_dict())
    assert not later.should_stop_early()
    later.add_metrics({"loss": 1.0})
    assert later.should_stop_early()
    later.clear()
    assert not later.should_stop_early()
    assert later.is_best_so_far()
