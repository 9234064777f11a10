"""Objects from names and configurations."""

import pytest
import torch

from portico.gradient_descent import (
    Checkpointer,
    ConfigurationError,
    ConsoleLoggerCallback,
    EpochCallback,
    GradientDescentTrainer,
    Lazy,
    LearningRateScheduler,
    MomentumScheduler,
    MovingAverage,
    Optimizer,
    Registrable,
    TensorboardWriter,
    Trainer,
    from_params,
)
from portico.gradient_descent.callbacks import BatchCallback, TrainerCallback
from portico.gradient_descent.construction import parameters_of, read_config
from portico.gradient_descent.experiment import BatchLoader, Model


class Shape(Registrable):
    default_implementation = "square"


@Shape.register("square")
class Square(Shape):
    def __init__(self, side: float = 1.0):
        self.side = side


@Shape.register("unit-square", constructor="unit")
class UnitSquare(Square):
    @classmethod
    def unit(cls, name: str | None = None):
        made = cls(1.0)
        made.name = name
        return made


@Shape.register("group")
class Group(Shape):
    def __init__(
        self,
        shapes: list[Shape],
        named: dict[str, Shape] | None = None,
        pair: tuple[int, Shape] | None = None,
        later: Lazy[Shape] | None = None,
        limit: int | float = 3,
        words: set[str] | None = None,
        sizes: tuple[int, ...] = (),
    ):
        self.shapes, self.named, self.pair, self.later = shapes, named, pair, later
        self.limit, self.words, self.sizes = limit, words, sizes


@Shape.register("cube")
class Cube(Square):
    def __init__(self, height: float, **kwargs):
        super().__init__(**kwargs)
        self.height = height


def test_registered_names_are_allennlps():
    optimizers = """
        adam sparse_adam adamax adamw huggingface_adamw huggingface_adafactor adagrad adadelta sgd rmsprop averaged_sgd
        dense_sparse_adam multi
    """
    assert Optimizer.list_available() == optimizers.split()
    schedulers = """
        combined constant constant_with_warmup cosine cosine_hard_restarts_with_warmup cosine_with_warmup exponential
        linear_with_warmup multi_step noam polynomial_decay reduce_on_plateau slanted_triangular step
    """
    assert sorted(LearningRateScheduler.list_available()) == schedulers.split()
    assert MomentumScheduler.list_available() == ["inverted_triangular"]
    assert MovingAverage.list_available() == ["exponential"]
    assert Trainer.by_name("gradient_descent") == GradientDescentTrainer.from_partial_objects
    assert Checkpointer.by_name("default") is Checkpointer
    assert TensorboardWriter.list_available() == ["default"]
    assert set(BatchCallback.list_available()) == {"tensorboard-memory-usage", "null"}
    assert set(EpochCallback.list_available()) == {"track_epoch_callback", "null"}
    names = "confidence_checks console_logger null should_validate_callback tensorboard track_epoch_callback"
    assert sorted(TrainerCallback.list_available()) == names.split()


def test_class_without_registered_names_is_built_itself():
    assert isinstance(from_params(ConsoleLoggerCallback, {"should_log_inputs": True}), ConsoleLoggerCallback)

    class Unused(Registrable):
        pass

    with pytest.raises(ConfigurationError, match=r"set it to the dotted path of a class \(no name is registered\)"):
        from_params(Unused, {})
    with pytest.raises(ConfigurationError, match=r"The registered names are: there is none yet\."):
        from_params(Unused, "unused")


def test_dotted_path_as_name():
    assert Optimizer.by_name("torch.optim.NAdam") is torch.optim.NAdam


def annotated_momentum(optimizer: "Unresolved") -> MomentumScheduler:  # noqa: F821
    """A function that a dotted path may name."""


def bare_momentum():
    """A function that a dotted path may name once it is registered."""


@pytest.mark.parametrize(
    ("base", "name"),
    [
        (Shape, "Group"),
        (MomentumScheduler, "annotated_momentum"),
        (LearningRateScheduler, "torch.optim.lr_scheduler.CosineAnnealingLR"),
        (TrainerCallback, "transformers.EarlyStoppingCallback"),
        (TrainerCallback, "lightning.pytorch.callbacks.EarlyStopping"),
        (BatchLoader, "torch.utils.data.DataLoader"),
        (Model, "torch.nn.Linear"),
    ],
)
def test_dotted_path_of_the_expected_kind(base, name):
    assert callable(base.by_name(name if "." in name else f"{__name__}.{name}"))


@pytest.mark.parametrize(
    ("base", "name", "kinds"),
    [
        (Shape, "os.system", "Shape, a function .* or a registered name: square"),
        (Trainer, "subprocess.Popen", "RegistrableTrainer, a function"),
        (Optimizer, "torch.optim.lr_scheduler.StepLR", "RegistrableOptimizer or Optimizer, a"),
        (LearningRateScheduler, "torch.optim.SGD", "LearningRateScheduler or LRScheduler, a"),
        (MomentumScheduler, f"{__name__}.bare_momentum", "MomentumScheduler, a function whose return annotation"),
        (Model, "subprocess.Popen", "Model or Module, a function"),
        (BatchLoader, "io.FileIO", "BatchLoader or DataLoader or Iterable or list, .*: there is none yet"),
        (BatchLoader, "os.listdir", "BatchLoader or DataLoader"),
        (BatchCallback, "transformers.EarlyStoppingCallback", "BatchCallback, a function"),
    ],
)
def test_dotted_path_of_another_kind_is_refused(base, name, kinds):
    with pytest.raises(ConfigurationError, match=f"'{name}' is not a valid type for .* derives from {kinds}"):
        base.by_name(name)


def test_dotted_path_of_a_registered_function(monkeypatch):
    monkeypatch.setitem(Registrable._registry, Shape, dict(Registrable._registry[Shape]))
    Shape.register("bare")(bare_momentum)
    assert Shape.by_name(f"{__name__}.bare_momentum") is bare_momentum


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("sqare", "'sqare' is not a registered name for Shape; did you mean 'square' or .*registered names are: sq"),
        ("unit_square", "did you mean 'unit-square'"),
        ("xyz", "not a registered name for Shape. The registered names are"),
        ("no_such_package.Shape", "read as the dotted path of a Shape, but cannot be imported .*install"),
        ("torch.optim.Adamx", "cannot be imported"),
    ],
)
def test_unknown_name_lists_the_nearest(name, match):
    with pytest.raises(ConfigurationError, match=match):
        Shape.by_name(name)


def test_duplicate_name_is_refused():
    with pytest.raises(ConfigurationError, match=r"'square' cannot be registered .* in use for `Square`"):
        Shape.register("square")(Cube)
    Shape.register("square", exist_ok=True)(Square)


def test_values_are_converted_to_annotated_types():
    group = from_params(
        Shape,
        {
            "type": "group",
            "shapes": ["square", {"side": 2}, {"type": "unit-square"}],
            "named": {"a": {"type": "cube", "height": 2.0, "side": 4.0}},
            "pair": [3, "square"],
            "later": {"side": 7.0},
            "limit": 2.5,
            "words": ["x", "y", "x"],
            "sizes": [1, 2],
        },
        name="given",
    )
    assert [type(shape) for shape in group.shapes] == [Square, Square, UnitSquare]
    assert [shape.side for shape in group.shapes] == [1.0, 2, 1.0]
    assert group.shapes[2].name == "given"
    assert (group.named["a"].side, group.named["a"].height) == (4.0, 2.0)
    assert group.pair[0] == 3
    assert isinstance(group.pair[1], Square)
    assert group.later.construct().side == 7.0
    assert group.later.construct() is not group.later.construct()
    assert (group.limit, group.words, group.sizes) == (2.5, {"x", "y"}, (1, 2))


@pytest.mark.parametrize(
    ("base", "params", "match"),
    [
        (LearningRateScheduler, {"gamma": 1.0}, "configuration of a LearningRateScheduler has no 'type'; set it to"),
        (
            Shape,
            {"sde": 1.0},
            "`sde` is not an argument of `Square`; the nearest valid names are: side. It takes",
        ),
        (Shape, {"side": "1"}, "`side='1'` is a str; set it to a value of type float"),
        (Shape, {"side": True}, "`side=True` is a bool; set it to a value of type float"),
        (Shape, {"type": "group"}, "`shapes` is required by `Group`, but the configuration does not have it"),
        (Shape, {"type": "group", "shapes": [], "limit": "x"}, "type int.*type float"),
        (Shape, {"type": "group", "shapes": [], "pair": [1]}, "has 1 entries; set it to a list of 2"),
        (Shape, {"type": "group", "shapes": [], "later": {"sde": 1}}, "`sde` is not an argument of `Square`"),
        (
            Shape,
            {"type": "group", "shapes": [], "later": 3},
            "3 cannot be built into a Shape; pass a dict with",
        ),
        (Shape, 7, "A Shape was configured as 7; set it to a dict"),
    ],
)
def test_invalid_configuration_is_refused(base, params, match):
    with pytest.raises(ConfigurationError, match=match):
        from_params(base, params)


def test_configuration_takes_precedence_over_extras(caplog):
    assert from_params(Shape, {"side": 2.0}, side=3.0).side == 2.0
    assert "`side` is given twice, and the configuration wins" in caplog.text


def test_kwargs_include_inherited_parameters():
    assert {"optimizer", "model", "precision", "callbacks", "loggers"} <= set(
        parameters_of(GradientDescentTrainer.from_partial_objects)
    )
    assert list(parameters_of(Cube)) == ["height", "side"]


def test_lazy_drops_unknown_extras():
    lazy = Lazy(Cube, {"height": 1.0}, side=2.0)
    made = lazy.construct(side=5.0, unknown=1)
    assert (made.height, made.side) == (1.0, 2.0)


def test_jsonnet_reads_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RATE", "0.5")
    file = tmp_path / "config.jsonnet"
    file.write_text('local rate = std.parseJson(std.extVar("RATE")); // a comment\n{trainer: {lr: rate * 2}}')
    assert read_config(file) == {"trainer": {"lr": 1.0}}


def test_json_needs_no_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rjsonnet", None)
    file = tmp_path / "config.json"
    file.write_text('{"trainer": {}}')
    assert read_config(file) == {"trainer": {}}
    file.write_text("{trainer: {}}")
    with pytest.raises(ConfigurationError, match=r"is not plain JSON .*pip install 'portico\[allennlp\]'"):
        read_config(file)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{trainer: ", "cannot be read as Jsonnet .*correct it"),
        ('{a: std.extVar("PORTICO_TEST_UNSET")}', "reads environment variables, which must be set"),
        ("[1]", "holds a list; write an object with the key 'trainer'"),
    ],
)
def test_invalid_file_is_refused(tmp_path, content, match):
    file = tmp_path / "config.jsonnet"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=match):
        read_config(file)
    with pytest.raises(ConfigurationError, match=r"`allennlp_config=.*none.jsonnet` is not a file"):
        read_config(tmp_path / "none.jsonnet")
