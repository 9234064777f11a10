"""When checkpoints are written, which are kept, and that a recovered training ends as if it had never stopped."""

import functools
import os
import time
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
import torchmetrics
from torch.utils.data import DataLoader

from damage import Touch
from portico.gradient_descent import BatchCallback, Checkpointer, ConfigurationError, ExponentialMovingAverage
from portico.gradient_descent.checkpointer import BestWeights
from portico.gradient_descent.schedulers import SlantedTriangular
from unit.gradient_descent.plain_training import (
    Interruption,
    Net,
    NoisyPoints,
    Unsized,
    assert_same_weights,
    interrupted_at,
    lasting,
    make_trainer,
    trainer_with_everything,
    weights,
)


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
def test_saving_and_retention(tmp_path, options, kept):
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


def test_allennlp_1_argument_names(tmp_path):
    with pytest.warns(FutureWarning, match="`num_serialized_models_to_keep` .* is called `keep_most_recent_by_count`"):
        checkpointer = Checkpointer(tmp_path, num_serialized_models_to_keep=-1)
    make_trainer(tmp_path, checkpointer=checkpointer).train()
    assert points(tmp_path) == ["e1_b0", "e2_b0", "e3_b0"]
    with pytest.warns(FutureWarning, match="`model_save_interval` of the checkpointer is called `save_every_num_sec"):
        Checkpointer(tmp_path, model_save_interval=60.0)


def test_permanent_checkpoints(tmp_path):
    checkpointer = Checkpointer(
        tmp_path, keep_most_recent_by_count=1, keep_serialized_model_every_num_seconds=100, save_completed_epochs=False
    )
    trainer = make_trainer(tmp_path, checkpointer=checkpointer)
    start = time.time()
    for epoch, age in enumerate([10, 150, 200, 260, 270]):
        trainer.progress.epochs_completed = epoch
        trainer.save_checkpoint()
        os.utime(tmp_path / f"training_state_e{epoch}_b0.th", (start + age, start + age))
    assert points(tmp_path) == ["e1_b0", "e3_b0", "e4_b0"]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"save_every_num_batches": "2"}, "`save_every_num_batches='2'` of the checkpointer cannot be used"),
        ({"save_every_num_batches": 0}, "`save_every_num_batches=0` of the checkpointer cannot be used; set it to 1"),
        ({"keep_most_recent_by_count": -2}, "`keep_most_recent_by_count=-2` .* set it to 0 or more"),
    ],
)
def test_invalid_checkpointer_argument_is_refused(tmp_path, options, match):
    with pytest.raises(ConfigurationError, match=match):
        Checkpointer(tmp_path, **options)
    Checkpointer(tmp_path, save_every_num_batches=5).check_processes(2)
    with pytest.raises(ConfigurationError, match=r"`save_every_num_seconds=60` .* not supported in distributed tra"):
        Checkpointer(tmp_path, save_every_num_seconds=60).check_processes(2)


def test_latest_checkpoint_is_the_furthest(tmp_path):
    make_trainer(tmp_path, checkpointer=Checkpointer(tmp_path, save_every_num_batches=2)).train()
    # The time of modification does not matter.
    os.utime(tmp_path / "model_state_e2_b4.th")
    assert Checkpointer(tmp_path).find_latest_checkpoint()[0].endswith("model_state_e3_b0.th")
    assert Checkpointer(tmp_path / "empty").find_latest_checkpoint() is None
    assert Checkpointer().load_checkpoint() is None


def check_recovery(folder, make_trainer, stops):
    """Compare trainings interrupted at each step of ``stops``, then resumed, with a whole one; return the latter."""
    whole = make_trainer(folder / "whole")
    expected = whole.train()
    for step in stops:
        stopped = folder / f"stopped-{step}"
        with pytest.raises(Interruption):
            make_trainer(stopped, batch_callbacks=[interrupted_at(step)]).train()
        resumed = make_trainer(stopped)
        assert lasting(resumed.train()) == lasting(expected), step
        assert_same_weights(weights(resumed.model), weights(whole.model))
        assert_same_weights(resumed.moving_average._shadows, whole.moving_average._shadows)
        assert resumed.optimizer.state_dict()["param_groups"] == whole.optimizer.state_dict()["param_groups"]
        assert resumed.progress.total_batches == whole.progress.total_batches
        assert resumed.lightning_trainer.global_step == whole.progress.total_batches
    return whole


class OfAllenNLP1(Checkpointer):
    def save_checkpoint(self, trainer):
        with trainer.get_checkpoint_state() as (model_state, training_state):
            torch.save((model_state, training_state), self.serialization_dir / "states.th")


class OfAllenNLP2(Checkpointer):
    def save_checkpoint(self, trainer):
        state = trainer.get_checkpoint_state()
        torch.save((state.model_state, state.trainer_state), self.serialization_dir / "states.th")

    def load_checkpoint(self):
        file = self.serialization_dir / "states.th"
        return torch.load(file, weights_only=False) if file.is_file() else ({}, {})


@pytest.mark.parametrize("checkpointer", [OfAllenNLP1, OfAllenNLP2])
def test_checkpointer_of_ones_own(tmp_path, checkpointer):
    expected = trainer_with_everything(tmp_path / "default", num_epochs=1)
    expected.train()
    trainer = trainer_with_everything(tmp_path / "own", num_epochs=1, checkpointer=checkpointer(tmp_path / "own"))
    trainer.train()
    states = torch.load(tmp_path / "own/states.th", weights_only=False)
    default = expected.checkpointer.load_checkpoint()
    assert_same_weights(dict(states[0]), dict(default.model_state))
    for part in ("shadows", "backups"):
        assert_same_weights(states[1]["moving_average"][part], default.trainer_state["moving_average"][part])
    if checkpointer is OfAllenNLP2:
        trainer.train()
        assert trainer.progress.epochs_completed == 1


@pytest.mark.parametrize(("accumulate", "steps"), [(1, 10), (2, 6)])
def test_recovery_at_every_step(tmp_path, accumulate, steps):
    make = functools.partial(trainer_with_everything, num_gradient_accumulation_steps=accumulate)
    assert check_recovery(tmp_path, make, range(2, steps + 1)).progress.total_batches == steps


def test_recovery_between_last_step_and_end_of_epoch(tmp_path):
    def interrupt(trainer, epoch):
        if epoch == 0:
            raise Interruption

    whole = trainer_with_everything(tmp_path / "whole")
    expected = whole.train()
    with pytest.raises(Interruption):
        trainer_with_everything(tmp_path / "stopped", epoch_callbacks=[interrupt]).train()
    resumed = trainer_with_everything(tmp_path / "stopped")
    assert resumed.checkpointer.find_latest_checkpoint()[0].endswith("model_state_e0_b5.th")
    assert lasting(resumed.train()) == lasting(expected)
    assert_same_weights(weights(resumed.model), weights(whole.model))


def test_recovery_of_loader_generators(tmp_path):
    def trainer(folder, **options):
        generator = torch.Generator().manual_seed(4)
        loader = DataLoader(NoisyPoints(), batch_size=2, shuffle=True, generator=generator)
        return trainer_with_everything(folder, data_loader=loader, **options)

    check_recovery(tmp_path, trainer, (4, 6, 8))


def test_recovery_without_loader_length(tmp_path):
    loader = Unsized(DataLoader(NoisyPoints(), batch_size=2))
    make = functools.partial(trainer_with_everything, data_loader=loader, num_gradient_accumulation_steps=2)
    check_recovery(tmp_path, make, range(2, 7))


def test_recovery_of_unfrozen_layers(tmp_path):
    def trainer(folder, **options):
        model = Net()
        groups = [{"params": model.inner.parameters()}, {"params": model.outer.parameters()}, {"params": []}]
        optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
        schedule = SlantedTriangular(optimizer, 3, 5, gradual_unfreezing=True, discriminative_fine_tuning=True)
        return trainer_with_everything(
            folder, model=model, optimizer=optimizer, learning_rate_scheduler=schedule, num_epochs=3, **options
        )

    assert not trainer(tmp_path / "new").model.inner.weight.requires_grad
    assert check_recovery(tmp_path, trainer, [8]).model.inner.weight.requires_grad


class Hits:
    """A metric as AllenNLP's are, with counts of many types."""

    def __init__(self, best_of=1):
        self.best_of = best_of
        self.inner = [Total()]
        self.reset()

    def __call__(self, errors):
        hits = errors.abs() < 1
        self.count = self.count + hits.sum()
        self.by_size[len(errors)] += 1
        self.words.update("hit" for hit in hits if hit)
        self.sizes.add(float(errors.sum()))
        self.last = np.float64(hits.sum())
        self.history = np.append(self.history, self.last)
        self.inner[0].total += 1

    def get_metric(self, reset=False):
        metric = [self.count, sum(self.by_size.values()), self.words["hit"], len(self.sizes), self.history.sum()]
        metric = {f"{index}_of_hits": float(value) for index, value in enumerate([*metric, self.inner[0].total])}
        if reset:
            self.reset()
        return metric

    def reset(self):
        self.count, self.by_size, self.words, self.sizes = 0, defaultdict(int), Counter(), set()
        self.last, self.history = None, np.zeros(0)
        self.inner[0].reset()


class Total:
    def __init__(self):
        self.total = 0

    def get_metric(self, reset=False):
        return self.total

    def reset(self):
        self.total = 0


class CountingNet(Net):
    """Counts in metrics of AllenNLP's kind, of torchmetrics, and in a buffer."""

    def __init__(self, best_of=1):
        super().__init__()
        self.metrics = {"hits": Hits(best_of)}
        self.error = torchmetrics.MeanSquaredError()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x, labels):
        outputs = super().forward(x, labels)
        errors = outputs["logits"].detach() - labels
        self.metrics["hits"](errors)
        self.error.update(errors, torch.zeros_like(errors))
        self.seen += len(x)
        return outputs

    def get_metrics(self, reset=False):
        metrics = {**super().get_metrics(reset), **self.metrics["hits"].get_metric(reset)}
        metrics |= {"error": self.error.compute().item(), "seen": self.seen.item()}
        if reset:
            self.error.reset()
            self.seen.zero_()
        return metrics


def test_recovery_of_what_models_count(tmp_path, caplog):
    def trainer(folder, **options):
        return trainer_with_everything(folder, model=CountingNet(), **options)

    whole = check_recovery(tmp_path, trainer, (3, 5, 9))
    assert whole.report.metrics["training_5_of_hits"] == 5
    assert "does not contain all that the model has counted" not in caplog.text


def test_recovery_keeps_settings_of_metrics(tmp_path):
    with pytest.raises(Interruption):
        trainer_with_everything(tmp_path, model=CountingNet(), batch_callbacks=[interrupted_at(3)]).train()
    resumed = trainer_with_everything(tmp_path, model=CountingNet(best_of=2))
    resumed.train()
    assert resumed.model.metrics["hits"].best_of == 2


@pytest.mark.parametrize("is_old", [False, True])
def test_metrics_that_cannot_be_recovered_are_named(tmp_path, caplog, is_old):
    class Opaque:
        total = 0

    class OpaqueNet(Net):
        def __init__(self):
            super().__init__()
            self.opaque = Opaque()

        def forward(self, x, labels):
            self.opaque.total += len(x)
            return super().forward(x, labels)

        def get_metrics(self, reset=False):
            metrics = {**super().get_metrics(reset), "share": self.count / self.opaque.total}
            if reset:
                self.opaque.total = 0
            return metrics

    with pytest.raises(Interruption):
        trainer_with_everything(tmp_path, model=OpaqueNet(), batch_callbacks=[interrupted_at(3)]).train()
    if is_old:
        path = tmp_path / "training_state_e0_b2.th"
        state = torch.load(path, weights_only=False)
        del state["processes"][0]["model_metrics"]
        torch.save(state, path)
    trainer_with_everything(tmp_path, model=OpaqueNet()).train()
    warnings = [record.message for record in caplog.records if "has counted for" in record.message]
    assert len(warnings) == 1
    # Without its counts the model divides by zero, so it is only known to be incomplete.
    assert ("for all metrics:" if is_old else "for count, share:") in warnings[0]


def test_finished_training_is_not_continued(tmp_path):
    finished = trainer_with_everything(tmp_path)
    expected = finished.train()
    again = trainer_with_everything(tmp_path)
    metrics = again.train()
    assert again.progress.total_batches == 10
    assert metrics["best_validation_loss"] == expected["best_validation_loss"]
    assert_same_weights(weights(again.model), weights(finished.model))


def test_more_epochs_continue_a_finished_training(tmp_path):
    longer = make_trainer(tmp_path / "longer", num_epochs=3)
    expected = longer.train()
    make_trainer(tmp_path / "shorter", num_epochs=2).train()
    assert lasting(make_trainer(tmp_path / "shorter", num_epochs=3).train()) == lasting(expected)


def test_model_state_has_averages_and_training_state_the_weights(tmp_path):
    trainer = trainer_with_everything(tmp_path)
    trainer.train()
    model_state, training_state = trainer.checkpointer.load_checkpoint()
    averages = training_state["moving_average"]
    assert_same_weights(dict(model_state), averages["shadows"])
    assert not torch.equal(averages["backups"]["inner.weight"], averages["shadows"]["inner.weight"])


def test_incomplete_checkpoint_is_ignored(tmp_path):
    trainer = make_trainer(tmp_path, num_epochs=2)
    trainer.train()
    (tmp_path / "training_state_e2_b0.th").unlink()
    assert trainer.checkpointer.find_latest_checkpoint()[0].endswith("e1_b0.th")


def refused(trainer, folder, match):
    """Require that training is refused, and that nothing in the folder has changed."""
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(ConfigurationError, match=match):
        trainer.train()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_checkpoint_of_another_model_is_refused(tmp_path):
    make_trainer(tmp_path, num_epochs=1).train()
    model = torch.nn.Linear(3, 1)
    other = make_trainer(tmp_path, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    refused(other, tmp_path, "Could not recover training from the checkpoint .* other weights .*Did you mean")


@pytest.mark.parametrize("options", [{"num_gradient_accumulation_steps": 2}, {"size": 12}])
def test_checkpoint_with_other_data_counts_is_refused(tmp_path, options):
    make_trainer(tmp_path, num_epochs=1).train()
    refused(make_trainer(tmp_path, **options), tmp_path, "data counts")


def test_checkpoint_with_other_parts_is_refused(tmp_path):
    make_trainer(tmp_path, num_epochs=1).train()
    model = Net()
    groups = [{"params": model.inner.parameters()}, {"params": model.outer.parameters()}]
    other = make_trainer(tmp_path, model=model, optimizer=torch.optim.SGD(groups, lr=0.1))
    refused(other, tmp_path, "other parameter groups")
    model = Net()
    averages = ExponentialMovingAverage(model.named_parameters())
    refused(make_trainer(tmp_path, model=model, moving_average=averages), tmp_path, "without a `moving_average`")


@pytest.mark.parametrize("sign", ["best.th", "metrics.json", "model_state_epoch_0.th", "trainer_state.json"])
def test_folder_with_unrecoverable_run_is_refused(tmp_path, sign):
    (tmp_path / sign).write_text("old")
    refused(make_trainer(tmp_path), tmp_path, f"already holds a run \\({sign}\\).*Specify another directory")


def test_checkpoint_of_another_version_is_refused(tmp_path):
    make_trainer(tmp_path, num_epochs=1).train()
    path = tmp_path / "training_state_e1_b0.th"
    state = torch.load(path, weights_only=False)
    torch.save({**state, "version": 9}, path)
    refused(make_trainer(tmp_path), tmp_path, "version 9 instead of 1")


def test_shorter_loader_is_refused(tmp_path):
    class Loader:
        def __init__(self, batches):
            self.batches = batches

        def __len__(self):
            return 5

        def __iter__(self):
            return iter(self.batches)

    batches = list(DataLoader(NoisyPoints(), batch_size=2))
    with pytest.raises(Interruption):
        trainer_with_everything(tmp_path, data_loader=Loader(batches), batch_callbacks=[interrupted_at(4)]).train()
    shorter = trainer_with_everything(tmp_path, data_loader=Loader(batches[:2]))
    with pytest.raises(ConfigurationError, match="yields only 2"):
        shorter.train()


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_damaged_checkpoint_is_refused(tmp_path, content):
    make_trainer(tmp_path, num_epochs=1).train()
    (tmp_path / "training_state_e1_b0.th").write_bytes(content)
    refused(make_trainer(tmp_path), tmp_path, r"Could not recover training from the checkpoint .* damaged, or a callb")


def test_nothing_in_a_checkpoint_is_executed(tmp_path):
    make_trainer(tmp_path, num_epochs=1).train()
    torch.save({"state": Touch(tmp_path / "touched")}, tmp_path / "training_state_e1_b0.th")
    with pytest.raises(ConfigurationError, match="one of its files is damaged"):
        Checkpointer(str(tmp_path)).load_checkpoint()
    assert not (tmp_path / "touched").exists()


def test_recovery_of_a_run_killed_while_the_best_weights_are_written(tmp_path, monkeypatch):
    whole = trainer_with_everything(tmp_path / "whole")
    whole.train()

    def killed(self, model, *, is_primary):
        if (tmp_path / "stopped" / "metrics_epoch_1.json").exists():
            raise Interruption
        save(self, model, is_primary=is_primary)

    save = BestWeights.save
    with monkeypatch.context() as patched:
        patched.setattr(BestWeights, "save", killed)
        with pytest.raises(Interruption):
            trainer_with_everything(tmp_path / "stopped").train()
    staged = tmp_path / "stopped" / f".portico-{'0' * 16}" / "best.th"
    staged.parent.mkdir()
    staged.write_bytes(b"half of them")
    resumed = trainer_with_everything(tmp_path / "stopped")
    resumed.train()
    assert_same_weights(weights(resumed.model), weights(whole.model))
    assert not [*(tmp_path / "stopped").glob(".*")]


def test_recovery_of_callback_states_and_numpy_metrics(tmp_path):
    class Counting(BatchCallback):
        def __init__(self):
            self.count = 0

        def __call__(self, is_training, **kwargs):
            self.count += is_training

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    class NumpyNet(Net):
        def get_metrics(self, reset=False):
            return {"count": np.float64(super().get_metrics(reset)["count"]), "tensor": torch.tensor(2)}

    def trainer(**options):
        counting = Counting()
        made = trainer_with_everything(
            tmp_path, model=NumpyNet(), moving_average=None, batch_callbacks=[counting], **options
        )
        return made, counting

    trainer(num_epochs=1)[0].train()
    later, counting = trainer()
    metrics = later.train()
    assert counting.count == 10
    assert type(metrics["validation_count"]) is float
    assert metrics["validation_tensor"] == 2
