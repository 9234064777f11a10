"""What the command line runs: the classification of topics, and configuration files of AllenNLP."""

import json
import math
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import TrainerCallback

from portico.cli import compose
from portico.cli.composition import instantiate_experiment
from portico.errors import InputError
from portico.experiments.experiment import Placement
from portico.experiments.settings import schema_of
from portico.gradient_descent import ConfigurationError, GradientDescentTrainer
from portico.gradient_descent.experiment import GradientDescentExperiment
from portico.gradient_descent.topics import TOPICS, VOCAB_SIZE, VOCABULARY, TopicData, make_sentences
from unit.gradient_descent.plain_training import Net, NoisyPoints


class FileNet(Net):
    """A model that a file or a setting names by its path; it does not take the sizes of the topic data."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale


def file_loader(size: int = 10) -> DataLoader:
    return DataLoader(NoisyPoints(size), batch_size=2)


def train(folder, *, allennlp_config=None, **changes):
    settings = compose(["data.num_train=300", "data.num_validation=100"], experiment="gradient_descent")
    groups = {name: {**settings[name], **values} for name, values in changes.items()}
    groups = {"trainer": settings["trainer"], **groups}
    groups["trainer"] = {"cuda_device": -1, **groups["trainer"]}
    config = None if allennlp_config is None else str(allennlp_config)
    return instantiate_experiment({**settings, **groups, "allennlp_config": config}, str(folder)).train()


def start(folder, mode, *overrides):
    folder.mkdir()
    settings = compose(
        ["data.num_train=300", "data.num_validation=100", f"mode={mode}", *overrides], experiment="gradient_descent"
    )
    return getattr(instantiate_experiment(settings, str(folder)), mode)()


def test_trained_weights_are_evaluated_and_predict(tmp_path):
    trained = train(tmp_path)
    weights = f"args.weights={tmp_path}"
    metrics = start(tmp_path / "scores", "evaluate", weights)
    assert metrics["accuracy"] == trained["best_validation_accuracy"]
    assert metrics["loss"] == pytest.approx(trained["best_validation_loss"])
    assert start(tmp_path / "answers", "predict", weights) == {"predict_samples": 100}
    lines = (tmp_path / "answers/predictions.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["logits"]) for line in lines] == [len(TOPICS)] * 100


@pytest.mark.parametrize(
    ("override", "message"),
    [("args.weights=null", r"`args\.weights=null`; set it to"), ("args.weights=none", "has no weights of this model")],
)
def test_an_evaluation_needs_trained_weights(override, message, tmp_path):
    with pytest.raises(InputError, match=message):
        start(tmp_path / "scores", "evaluate", override)


def test_an_evaluation_needs_validation_batches(tmp_path):
    file = tmp_path / "config.jsonnet"
    loader = {"type": f"{__name__}.file_loader", "size": 6}
    model = {"type": f"{__name__}.FileNet", "scale": 2.0}
    file.write_text(json.dumps({"trainer": {}, "model": model, "data_loader": loader}))
    with pytest.raises(InputError, match=r"config\.jsonnet makes none; add a 'validation_data_loader'"):
        start(tmp_path / "scores", "evaluate", "args.weights=none", f"allennlp_config={file}")


def test_training_improves_accuracy(tmp_path):
    metrics = train(tmp_path)
    assert metrics["best_validation_accuracy"] > 0.8
    assert {"best.th", "metrics.json", "all_results.json", "log"} <= {path.name for path in tmp_path.iterdir()}
    assert json.loads((tmp_path / "all_results.json").read_text()) == metrics
    assert all(isinstance(value, int | float) for value in metrics.values())


def test_runs_are_reproducible_by_seed(tmp_path):
    options = {"trainer": {"num_epochs": 1}}
    first, again, other = (
        train(tmp_path / name, args={"seed": seed}, **options) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first["training_loss"] == again["training_loss"] != other["training_loss"]


def test_training_accuracy_of_a_resumed_epoch_covers_all_of_it(tmp_path):
    class Interruption(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 6:
                raise KeyboardInterrupt

    def experiment(folder, **args):
        overrides = ["data.num_train=300", "data.num_validation=100", "trainer.num_epochs=1"]
        settings = compose(overrides, experiment="gradient_descent")
        settings["trainer"] |= {"cuda_device": -1, "checkpointer": {"save_every_num_batches": 5}}
        settings["args"] |= args
        return instantiate_experiment(settings, str(folder))

    whole = experiment(tmp_path / "whole").train()
    stopped = experiment(tmp_path / "stopped")
    stopped.callbacks = [Interruption()]
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    resumed = experiment(tmp_path / "stopped", resume_from_checkpoint=True).train()
    assert resumed["training_accuracy"] == whole["training_accuracy"]
    assert resumed["training_loss"] == whole["training_loss"]


def test_sentences_are_the_same_for_the_same_seed():
    assert make_sentences(5, seed=1) == make_sentences(5, seed=1) != make_sentences(5, seed=2)
    words = set(VOCABULARY)
    assert all(set(sentence["words"]) <= words and sentence["topic"] in TOPICS for sentence in make_sentences(50, 0))


def test_batches_are_padded_numbers():
    batch = next(iter(TopicData(num_train=8, num_validation=8, batch_size=4).load()[1]))
    assert batch["tokens"].dtype == batch["label"].dtype == torch.int64
    assert batch["tokens"].shape[0] == 4
    assert batch["tokens"].min() >= 0
    assert batch["tokens"].max() < VOCAB_SIZE


def test_file_replaces_the_settings(tmp_path):
    file = tmp_path / "config.jsonnet"
    file.write_text("""
        local epochs = 2;
        {
          pytorch_seed: 5,
          model: {type: "bag_of_words", embedding_dim: 4},
          trainer: {
            num_epochs: epochs, cuda_device: -1, validation_metric: "+accuracy",
            optimizer: {type: "huggingface_adamw", lr: 0.02, parameter_groups: [[["bias"], {weight_decay: 0.0}]]},
            learning_rate_scheduler: {type: "slanted_triangular"},
            checkpointer: {keep_most_recent_by_count: 1},
            epoch_callbacks: ["track_epoch_callback"],
            tensorboard_writer: {summary_interval: 5},
          },
        }
    """)
    metrics = train(tmp_path / "run", allennlp_config=file)
    assert metrics["epoch"] == 1
    assert [path.name for path in (tmp_path / "run").glob("model_state*")] == ["model_state_e2_b0.th"]
    state = torch.load(tmp_path / "run" / "best.th", weights_only=True)
    assert state["embedding.weight"].shape == (VOCAB_SIZE, 4)


def test_file_with_its_model_and_data(tmp_path):
    file = tmp_path / "config.json"
    content = {
        "model": {"type": f"{__name__}.FileNet", "scale": 2.0},
        "data_loader": {"type": f"{__name__}.file_loader", "size": 6},
        "trainer": {"num_epochs": 1, "cuda_device": -1, "optimizer": {"type": "sgd", "lr": 0.1}},
    }
    file.write_text(json.dumps(content))
    metrics = train(tmp_path / "run", allennlp_config=file)
    assert metrics["training_count"] == 6.0
    assert "validation_loss" not in metrics
    content["validation_data_loader"] = {"type": f"{__name__}.file_loader", "size": 4}
    file.write_text(json.dumps(content))
    assert train(tmp_path / "validated", allennlp_config=file)["validation_count"] == 4.0


def test_no_op_trainer_in_a_file(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"trainer": {"type": "no_op"}}))
    assert train(tmp_path / "run", allennlp_config=file) == {}
    assert {"best.th", "model_state_e0_b0.th"} <= {path.name for path in (tmp_path / "run").iterdir()}
    with pytest.raises(ConfigurationError, match=r"already holds a run \(best.th"):
        train(tmp_path / "run", allennlp_config=file)


def test_callbacks_of_allennlp_2_in_a_file(tmp_path, caplog):
    caplog.set_level("INFO")
    file = tmp_path / "config.json"
    names = ["console_logger", {"type": "should_validate_callback", "validation_interval": 2}, "track_epoch_callback"]
    file.write_text(json.dumps({"trainer": {"num_epochs": 2, "cuda_device": -1, "callbacks": names}}))
    metrics = train(tmp_path / "run", allennlp_config=file)
    assert (metrics["epoch"], metrics["best_epoch"]) == (1, 0)
    assert "accuracy" in caplog.text
    assert "which wins over" not in caplog.text


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"trainer": {}, "dataset_reader": {}, "vocabulary": {}}, "the sections dataset_reader, vocabulary, which"),
        ({"model": {"type": "bag_of_words"}}, "has no section 'trainer'"),
        ({"trainer": {}, "model": {"type": "torch.nn.Linear"}}, "has its own 'model' but no 'data_loader'"),
        ({"trainer": {"type": "callback"}}, "'callback' is not a registered name for Trainer"),
        ({"trainer": {"num_epoch": 1}}, "`num_epoch` is not an argument of"),
    ],
)
def test_invalid_file_is_refused(tmp_path, content, match):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=match):
        train(tmp_path / "run", allennlp_config=file)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "place",
    [
        lambda call: {"model": call, "data_loader": call, "trainer": {}},
        lambda call: {"model": "bag_of_words", "data_loader": call, "trainer": {}},
        lambda call: {"trainer": call},
        lambda call: {"trainer": {"optimizer": call}},
        lambda call: {"trainer": {"checkpointer": call}},
        lambda call: {"trainer": {"epoch_callbacks": [call]}},
        lambda call: {"trainer": {"optimizer": {"type": "multi", "parameter_groups": [], "optimizers": {"x": call}}}},
    ],
)
def test_file_that_names_a_command_is_refused(tmp_path, place):
    content = place({"type": "os.system", "command": f"touch {tmp_path}/called"})
    file = tmp_path / "config.json"
    file.write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match=r"'os.system' is not a valid type for .* or a registered name: "):
        train(tmp_path / "run", allennlp_config=file)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def leave_a_trace(path):
    Path(path).touch()


@pytest.mark.parametrize("name", ["optimizer", "checkpointer"])
def test_partial_of_another_function_is_refused(tmp_path, name):
    call = {"_target_": f"{__name__}.leave_a_trace", "_partial_": True, "path": str(tmp_path / "called")}
    with pytest.raises(ConfigurationError, match=f"'leave_a_trace' is not a valid type for {name.title()}"):
        train(tmp_path, trainer={name: call})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("group", "values", "match"),
    [
        ("data", {"num_train": "many"}, "`data.num_train=many` cannot be used; set it to an integer of 1 or more"),
        ("data", {"batch_size": 0}, "`data.batch_size=0` cannot be used; set it to an integer of 1 or more"),
        ("model", {"dropout": "half"}, "`model.dropout=half` cannot be used; set it to a number"),
        ("model", {"vocab_size": 3}, "'model.vocab_size' is not a setting"),
        ("args", {"seed": "x"}, "`args.seed=x` cannot be used; set it to an integer of 0 or more"),
        ("args", {"learning_rate": 0.1}, "'args.learning_rate' is not a setting"),
        ("preprocess", {"doc_stride": 4}, "'preprocess' is not a setting"),
        ("model", {"dropout": math.nan}, "`model.dropout=nan` cannot be used; set it to a number"),
        (
            "model",
            {"dropout": math.inf},
            r"cannot be built with dropout=inf \(dropout probability has to be between",
        ),
        ("model", {"dropout": -0.5}, "cannot be built with dropout=-0.5"),
        ("model", {"embedding_dim": 0}, r"cannot be built with embedding_dim=0 \(`embedding_dim=0` is not positive"),
        ("trainer", {"no_grad": 3}, "`no_grad=3` is a number; set it to a list"),
        ("trainer", {"optimizer": {"type": "sgd", "lr": math.inf}}, "`lr=inf` of the optimizer is not finite"),
        ("trainer", {"optimizer": {"type": "sgd", "lr": 0.1, "momentum": math.nan}}, "`momentum=nan` .* to a number"),
        ("trainer", {"moving_average": {"type": "exponential", "decay": math.nan}}, "`decay=nan` cannot be used"),
        (
            "trainer",
            {"learning_rate_scheduler": {"type": "linear_with_warmup", "warmup_steps": -3}},
            "`warmup_steps=-3` is negative; set it to 0 optimizer steps or more",
        ),
    ],
)
def test_invalid_setting_is_refused(tmp_path, group, values, match):
    with pytest.raises(InputError, match=match):
        train(tmp_path, **{group: values})


class PointData:
    """Data that a setting names by its path."""

    def __init__(self, size: int = 10) -> None:
        self.size = size

    def load(self):
        return file_loader(self.size), file_loader(4)


class CountingTrainer(GradientDescentTrainer):
    """A trainer that a setting names by its path."""

    trained = 0

    def train(self):
        type(self).trained += 1
        return super().train()


def test_custom_model_data_and_trainer(tmp_path):
    own = {"model": "FileNet", "data": "PointData", "trainer": "CountingTrainer"}
    targets = [f"{group}._target_={__name__}.{name}" for group, name in own.items()]
    overrides = ["data.size=6", "model.scale=3.0", "trainer.num_epochs=1", "trainer.validation_metric=-loss"]
    settings = compose([*targets, *overrides, "strategy=cpu"], experiment="gradient_descent")
    metrics = instantiate_experiment(settings, str(tmp_path / "run")).train()
    assert (metrics["training_count"], metrics["validation_count"]) == (6.0, 4.0)
    assert CountingTrainer.trained == 1


def test_parts_built_by_hydra(tmp_path):
    optimizer = "{_target_: torch.optim.SGD, _partial_: true, lr: 0.5}"
    overrides = [
        "data.num_train=64",
        "data.num_validation=32",
        "trainer.num_epochs=1",
        "trainer.moving_average=null",
        f"trainer.optimizer={optimizer}",
    ]
    strategy = "strategy.accelerator=cpu"
    settings = compose([*overrides, strategy, "~trainer.optimizer.type", "logger=csv"], experiment="gradient_descent")
    settings["logger"]["csv"]["save_dir"] = str(tmp_path)
    instantiate_experiment(settings, str(tmp_path / "run")).train()
    assert "training_loss" in (tmp_path / "csv" / "version_0" / "metrics.csv").read_text()
    state = torch.load(tmp_path / "run" / "training_state_e1_b0.th", weights_only=False)
    assert "nesterov" in state["optimizer"]["param_groups"][0]
    both = compose([*overrides, strategy], experiment="gradient_descent")
    with pytest.raises(ConfigurationError, match="`type` is not an argument of `SGD`"):
        instantiate_experiment(both, str(tmp_path / "both")).train()


def test_trainer_settings_are_its_arguments():
    spec = next(one for one in fields(GradientDescentExperiment) if one.name == "trainer").metadata["group"]
    keys = set(spec.schema_of(GradientDescentTrainer).known)
    assert {"type", "optimizer", "no_grad", "opt_level", "end_callbacks"} <= keys
    assert not {"model", "data_loader", "serialization_dir", "loggers", "precision"} & keys
    assert "precision" in schema_of(Placement).known
