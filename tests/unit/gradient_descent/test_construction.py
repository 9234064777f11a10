"""Objects from names and configurations."""

import functools

import pytest
import torch

import portico
from portico.gradient_descent import (
    Checkpointer,
    ConfigurationError,
    EpochCallback,
    ExponentialMovingAverage,
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
from portico.gradient_descent.callbacks import BatchCallback
from portico.gradient_descent.construction import parameters_of, read_config
from unit.gradient_descent.plain_training import Net, PlainTraining, assert_same_weights, loaders, weights


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


def test_names_are_those_of_allennlp():
    assert Optimizer.list_available() == [
        "adam",
        "sparse_adam",
        "adamax",
        "adamw",
        "huggingface_adamw",
        "huggingface_adafactor",
        "adagrad",
        "adadelta",
        "sgd",
        "rmsprop",
        "averaged_sgd",
        "dense_sparse_adam",
        "multi",
    ]
    assert set(LearningRateScheduler.list_available()) == {
        "combined",
        "constant",
        "constant_with_warmup",
        "cosine",
        "cosine_hard_restarts_with_warmup",
        "cosine_with_warmup",
        "exponential",
        "linear_with_warmup",
        "multi_step",
        "noam",
        "polynomial_decay",
        "reduce_on_plateau",
        "slanted_triangular",
        "step",
    }
    assert MomentumScheduler.list_available() == ["inverted_triangular"]
    assert MovingAverage.list_available() == ["exponential"]
    assert Trainer.by_name("gradient_descent") == GradientDescentTrainer.from_partial_objects
    assert Checkpointer.by_name("default") is Checkpointer
    assert TensorboardWriter.list_available() == ["default"]
    assert set(BatchCallback.list_available()) == {"tensorboard-memory-usage", "null"}
    assert set(EpochCallback.list_available()) == {"track_epoch_callback", "null"}


def test_public_names():
    assert portico.GradientDescentTrainer is GradientDescentTrainer
    assert portico.ExponentialMovingAverage is ExponentialMovingAverage


def test_a_name_may_be_a_dotted_path():
    assert Optimizer.by_name("torch.optim.NAdam") is torch.optim.NAdam


@pytest.mark.parametrize(
    ("name", "match"),
    [
        (
            "sqare",
            r"'sqare' is not a registered name for Shape; did you mean 'square' or .*registered names are: sq",
        ),
        ("unit_square", "did you mean 'unit-square'"),
        ("xyz", "not a registered name for Shape. The registered names are"),
        ("no_such_package.Shape", "read as the dotted path of a Shape, but cannot be imported .*install"),
        ("torch.optim.Adamx", "cannot be imported"),
    ],
)
def test_an_unknown_name_lists_the_nearest(name, match):
    with pytest.raises(ConfigurationError, match=match):
        Shape.by_name(name)


def test_a_name_is_given_once():
    with pytest.raises(ConfigurationError, match=r"'square' cannot be registered .* in use for `Square`"):
        Shape.register("square")(Cube)
    Shape.register("square", exist_ok=True)(Square)


def test_values_are_built_by_the_annotations():
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
    ("params", "match"),
    [
        ({"sde": 1.0}, "`sde` is not an argument of `Square`; the nearest valid names are: side. It takes: side."),
        ({"side": "1"}, "`side='1'` is a str; set it to a value of type float"),
        ({"side": True}, "`side=True` is a bool; set it to a value of type float"),
        ({"type": "group"}, "`shapes` is required by `Group`, but the configuration does not have it"),
        ({"type": "group", "shapes": [], "limit": "x"}, "type int.*type float"),
        ({"type": "group", "shapes": [], "pair": [1]}, "has 1 entries; set it to a list of 2"),
        ({"type": "group", "shapes": [], "later": {"sde": 1}}, "`sde` is not an argument of `Square`"),
        ({"type": "group", "shapes": [], "later": 3}, "3 cannot be built into a Shape; give a dict with 'type'"),
        (7, "A Shape was configured as 7; give a dict"),
    ],
)
def test_what_cannot_be_built_is_refused(params, match):
    with pytest.raises(ConfigurationError, match=match):
        from_params(Shape, params)


def test_a_type_is_required_where_there_is_no_default():
    with pytest.raises(ConfigurationError, match="configuration of a LearningRateScheduler has no 'type'; set it to"):
        from_params(LearningRateScheduler, {"gamma": 1.0})


def test_the_configuration_wins_over_the_value_at_hand(caplog):
    assert from_params(Shape, {"side": 2.0}, side=3.0).side == 2.0
    assert "`side` is set in the configuration, which wins" in caplog.text


def test_a_class_method_takes_what_its_class_takes():
    assert {"optimizer", "model", "precision", "callbacks", "loggers"} <= set(
        parameters_of(GradientDescentTrainer.from_partial_objects)
    )
    assert list(parameters_of(Cube)) == ["height", "side"]


def test_a_lazy_object_takes_what_its_constructor_takes():
    lazy = Lazy(Cube, {"height": 1.0}, side=2.0)
    made = lazy.construct(side=5.0, unknown=1)
    assert (made.height, made.side) == (1.0, 2.0)


def test_parameter_groups_by_pattern(caplog):
    model = Net()
    params = {
        "type": "adamw",
        "lr": 0.1,
        "parameter_groups": [
            [["inner.bias"], {"requires_grad": False, "lr": 9.0}],
            [["^outer", "no such"], {"lr": 0.5}],
        ],
    }
    optimizer = from_params(Optimizer, params, model_parameters=list(model.named_parameters()))
    assert type(optimizer) is torch.optim.AdamW
    first, rest = optimizer.param_groups
    assert (first["lr"], rest["lr"]) == (0.5, 0.1)
    assert [id(parameter) for parameter in first["params"]] == [id(model.outer.weight), id(model.outer.bias)]
    assert [id(parameter) for parameter in rest["params"]] == [id(model.inner.weight)]
    assert not model.inner.bias.requires_grad
    assert "'no such' matches no parameter name" in caplog.text
    assert "has no use for its options: lr" in caplog.text


def test_a_parameter_belongs_to_one_group():
    params = {"parameter_groups": [[["inner"], {}], [["bias"], {}]]}
    with pytest.raises(ConfigurationError, match=r"'inner.bias' belongs to two parameter groups"):
        from_params(Optimizer, params, model_parameters=list(Net().named_parameters()))


def test_every_optimizer_makes_a_step():
    for name in Optimizer.list_available():
        if name in ("sparse_adam", "multi"):
            continue
        model = Net()
        needed = {"lr": 0.1} if name == "sgd" else {}
        optimizer = from_params(Optimizer, {"type": name, **needed}, model_parameters=list(model.named_parameters()))
        before = weights(model)
        model(torch.ones(2, 3), torch.zeros(2, 1))["loss"].backward()
        optimizer.step()
        assert not torch.equal(model.outer.bias, before["outer.bias"]), name


def test_an_option_of_another_optimizer_is_refused():
    with pytest.raises(ConfigurationError, match=r"`betas` is not an argument of `SGD`.* It takes: model_param"):
        from_params(Optimizer, {"type": "sgd", "betas": [0.9, 0.9]}, model_parameters=[])


def built(**parts):
    model = Net()
    train, validation = loaders()
    options = {"data_loader": train, "validation_data_loader": validation, "num_epochs": 2, "cuda_device": -1, **parts}
    torch.manual_seed(11)
    return GradientDescentTrainer.from_partial_objects(model, None, **options)


LIKE_PLAIN = {"type": "sgd", "lr": 0.1, "momentum": 0.9}


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
def test_parts_are_built_in_the_order_they_need(optimizer):
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


def test_the_default_optimizer_is_adam():
    assert type(built().optimizer) is torch.optim.Adam


def test_patterns_freeze_parameters_before_the_optimizer_is_built():
    trainer = built(no_grad=["^inner", "nothing"], moving_average="exponential")
    before = weights(trainer.model)
    trainer.train()
    after = weights(trainer.model)
    assert torch.equal(after["inner.weight"], before["inner.weight"])
    assert not torch.equal(after["outer.weight"], before["outer.weight"])
    assert sum(len(group["params"]) for group in trainer.optimizer.param_groups) == 2
    assert set(trainer.moving_average.state_dict()["shadows"]) == {"outer.weight", "outer.bias"}


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ConfigurationError, match=r"'\(' is not a regular expression"):
        built(no_grad=["("])


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
def test_a_wrong_part_is_refused_before_anything_is_frozen(parts, match):
    model = Net()
    with pytest.raises(ConfigurationError, match=match):
        GradientDescentTrainer.from_partial_objects(model, None, data_loader=loaders()[0], no_grad=[".*"], **parts)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        (
            {"optimizer": {"type": "adam", "lr": "0.1"}},
            "`Adam` cannot be built with lr='0.1' .*correct its config",
        ),
        ({"optimizer": {"type": "adam", "lr": -1}}, r"`Adam` cannot be built with lr=-1 \(Invalid learning rate"),
        ({"optimizer": {"type": "adam", "betas": [0.9]}}, r"`Adam` cannot be built with betas=\[0.9\]"),
        ({"no_grad": "inner"}, "`no_grad='inner'` is a str; set it to a list"),
        ({"no_grad": [".*"]}, "no parameter left to train with `no_grad="),
        (
            {"optimizer": {"type": "adam", "parameter_groups": [[["inner"], 1.0]]}},
            "`parameter_groups` holds .*; write each group as a list of patterns and a dict of options",
        ),
        (
            {"optimizer": {"type": "adam", "parameter_groups": [[["inner"], {"lrr": 1.0}]]}},
            "A parameter group has the option `lrr`, which Adam does not know; it knows: amsgrad",
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
        (
            {"learning_rate_scheduler": {"type": "combined", "schedulers": []}},
            "'combined' is empty; give at least one",
        ),
    ],
)
def test_a_wrong_value_is_refused_when_the_part_is_built(parts, match):
    with pytest.raises(ConfigurationError, match=match):
        built(**parts)


def test_a_trainer_of_a_configuration():
    train, validation = loaders()
    config = {"optimizer": LIKE_PLAIN, "num_epochs": 3, "cuda_device": -1, "validation_metric": ["-loss"]}
    trainer = from_params(
        Trainer,
        config,
        model=Net(),
        data_loader=train,
        validation_data_loader=validation,
        serialization_dir=None,
    )
    torch.manual_seed(11)
    trainer.train()
    assert_same_weights(weights(trainer.model), PlainTraining().run().best)
    with pytest.raises(ConfigurationError, match=r"`num_epoch` is not an argument of .*nearest .* are: num_ep"):
        from_params(Trainer, {"num_epoch": 3}, model=Net(), data_loader=train, serialization_dir=None)


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
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content, match):
    file = tmp_path / "config.jsonnet"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=match):
        read_config(file)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"`allennlp_config=.*none.jsonnet` is not a file"):
        read_config(tmp_path / "none.jsonnet")
