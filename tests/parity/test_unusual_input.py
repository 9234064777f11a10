"""What transformers trains is never refused, however unusual the classes of the values.

Each training argument and each part of a trainer is given as values of many kinds: numbers of numpy, torch and the
standard library, enumerations, subclasses, mappings, iterators, callables. Where portico raises an error, transformers
must raise one too, or :func:`is_refused_on_purpose` says why.
"""

import array
import collections
import contextlib
import dataclasses
import enum
import fractions
import functools
import io
import itertools
import logging
import math
import os
import pathlib
import types
import warnings
from decimal import Decimal
from functools import partial

import datasets
import numpy as np
import pandas
import pytest
import torch
import torchmetrics
import transformers
from torch.utils.data import ConcatDataset, DataLoader, Subset

import portico
from models import Line, Points
from parity.peers import OWN_FIELDS, QUIET
from parity.test_every_field import SCENARIOS
from portico.arguments import argument_rules
from portico.deprecated import OlderArguments


class Integer(int):
    pass


class Number(float):
    pass


class Text(str):
    pass


class Rows(list):
    pass


class Options(dict):
    """Options that can be read as attributes, as in several packages."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Proxy:
    """A value that only converts itself when it is used, as wrappers of configuration files do."""

    def __init__(self, value):
        self.value = value

    def __getattr__(self, name):
        return getattr(self.value, name)

    def __index__(self):
        return self.value.__index__()

    def __float__(self):
        return float(self.value)

    def __str__(self):
        return str(self.value)

    def __bool__(self):
        return bool(self.value)

    def __eq__(self, other):
        return self.value == other

    def __hash__(self):
        return hash(self.value)


def numbers_like(value):
    yield from (Number(value), np.float64(value), np.float32(value), np.array(value), torch.tensor(value))
    yield from (fractions.Fraction(value), Decimal(str(float(value))), np.array([value]), str(value), Text(value))
    yield from (Proxy(value), complex(value), float(value), np.float16(value), enum.Enum("E", {"a": value}).a)
    if value == int(value):
        whole = int(value)
        yield from (whole, Integer(whole), np.int64(whole), np.int32(whole), np.uint8(whole % 256))
        yield enum.IntEnum("IntE", {"a": whole}).a
        yield bool(whole)
        yield np.bool_(whole)


def strings_like(value):
    text = str(value)
    yield from (Text(text), np.str_(text), pathlib.Path(text), collections.UserString(text), text.encode())
    yield from (enum.Enum("E", {"a": text}, type=str).a, enum.StrEnum("S", {"a": text}).a, text.upper(), f" {text}")
    yield from (Proxy(text), [text], (text,))


def lists_like(value):
    items = list(value)
    yield from (Rows(items), tuple(items), collections.UserList(items), collections.deque(items), np.array(items))
    yield from (set(items), frozenset(items), dict.fromkeys(items), dict.fromkeys(items).keys(), iter(items))
    yield from ((item for item in items), map(str, items), itertools.chain(items), ",".join(map(str, items)))
    yield from (" ".join(map(str, items)), pandas.Series(items), collections.namedtuple("N", "a")(items[0]))


def mappings_like(value):
    yield from (collections.OrderedDict(value), Options(value), collections.UserDict(value), list(value.items()))
    yield from (collections.defaultdict(int, value), types.MappingProxyType(value), collections.ChainMap(value))
    yield from (types.SimpleNamespace(**value), str(value).replace("'", '"').replace("True", "true"), Proxy(value))


def anything():
    yield from (None, True, False, 0, 1, -1, 1.0, 0.5, float("inf"), float("nan"))
    yield from ("", "1", "true", "no", b"1", [], (), {}, [1])
    yield from ({"a": 1}, {1}, range(2), iter(()), len, partial(int, 1), lambda *args: 1, int, object(), np.arange(2))
    yield from (np.array(1), torch.ones(2), pathlib.Path("a"), Decimal(1), fractions.Fraction(1, 2), Ellipsis, 1j)


def values_like(value):
    """Return values of many classes that stand for ``value``, and values that stand for nothing."""
    like = ()
    if isinstance(value, dict):
        like = mappings_like(value)
    elif isinstance(value, list):
        like = lists_like(value)
    elif isinstance(value, str):
        like = strings_like(value)
    elif isinstance(value, int | float):
        like = numbers_like(value)
    return [*like, *anything()]


# ---- Training arguments ----

LEFT_OUT = {
    "ddp_backend": "several processes",
    "output_dir": "a folder is made of any of them",
    "push_to_hub": "needs a server",
    "resume_from_checkpoint": "scripts read it, no trainer does",
    "torch_compile": "compiling takes long",
    "torch_compile_backend": "compiling takes long",
}
SETTINGS = {
    "accelerator_config": {"accelerator_config": {"split_batches": False}},
    "eval_steps": {"eval_steps": 1, "eval_strategy": "steps"},
    "max_steps": {"max_steps": 2},
    "optim": {"optim": "sgd"},
    "report_to": {"report_to": ["none"]},
    "use_cpu": {"use_cpu": True},
    "warmup_steps": {"warmup_steps": 2},
}
FIELDS = [
    field.name
    for field in dataclasses.fields(transformers.TrainingArguments)
    if field.init
    and field.name not in LEFT_OUT
    and field.name not in {*OWN_FIELDS, *(old.name for old in dataclasses.fields(OlderArguments))}
]
# In the default run; a field takes two to twenty seconds.
USUAL_FIELDS = ("learning_rate", "lr_scheduler_kwargs", "optim", "save_total_limit", "weight_decay")


def settings_of(name):
    """Return arguments of a run in which the field ``name`` acts."""
    found = SETTINGS.get(name) or next((values for values in SCENARIOS.values() if name in values), {})
    return {key: value for key, value in found.items() if key not in ("torch_compile", "report_to")} or found


def is_refused_on_purpose(name, value):
    """Return whether docs/training_arguments.md says that the value is refused, and why."""
    if name == "max_steps" and isinstance(value, float):
        return not value.is_integer()  # compared where the trainer is made, and counted where it trains
    if name == "gradient_accumulation_steps":
        # A string, a proxy of a number, or an array of several is not compared; transformers fails on them too.
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return not value >= 1  # a window needs a batch
    rule = argument_rules().get(name)
    if isinstance(value, float) and math.isnan(value):
        return rule is not None and bool({int, float}.intersection(rule.kinds))
    says_no = isinstance(value, str) and value.strip().lower() in ("false", "no", "off", "0")
    return says_no and rule is not None and bool in rule.kinds  # transformers takes such a word for True


def metrics(prediction, compute_result=True):
    return {"first_logit": 1.0}


@contextlib.contextmanager
def silence():
    environment = dict(os.environ)
    logging.disable(logging.CRITICAL)
    try:
        with (
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        logging.disable(logging.NOTSET)
        transformers.logging.set_verbosity_warning()
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


def failure(library, folder, arguments=(), *, base=None, trains=True, evaluates=True, **parts):
    """Train and evaluate with ``library``; return the error, or ``None``."""
    options = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2, **QUIET, "max_steps": 2}
    trainer = None
    with silence():
        try:
            args = library.TrainingArguments(str(folder), **{**options, **dict(arguments)})
            model = Line()
            given = {"model": model, "args": args, "train_dataset": Points(6), "eval_dataset": Points(4, seed=1)}
            made = {name: make(model) for name, make in parts.items()}
            trainer = (base or (lambda kind: kind))(library.Trainer)(**given | {"compute_metrics": metrics} | made)
            if trains:
                trainer.train()
            if evaluates:
                trainer.evaluate()
        except Exception as error:
            return error
        finally:
            stop_watching_memory(trainer)
    return None


def stop_watching_memory(trainer):
    """End the thread of transformers' memory tracker, which a run that fails leaves turning without a pause."""
    if trainer is not None:
        trainer._memory_tracker.peak_monitoring = False


# Torch's loader of several processes raises an error in its `__del__` where its options are wrong.
UNFINISHED_LOADERS = "ignore:Exception ignored in.*_MultiProcessingDataLoaderIter"


@pytest.mark.filterwarnings(UNFINISHED_LOADERS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in USUAL_FIELDS else pytest.mark.slow) for name in FIELDS]
)
def test_arguments_that_transformers_trains_with(name, tmp_path):
    settings = settings_of(name)
    default = transformers.TrainingArguments.__dataclass_fields__[name].default
    plain = settings.get(name, default)
    refused = []
    for index, shown in enumerate(values_like(plain)):

        def run(library, index=index):
            # Made anew for each run, since an iterator can be read once.
            return failure(library, tmp_path, settings | {name: values_like(plain)[index]})

        ours = run(portico)
        if ours is not None and not is_refused_on_purpose(name, shown) and run(transformers) is None:
            refused.append(f"{name}={shown!r} ({type(shown).__name__}): {type(ours).__name__}: {ours}")
    assert refused == []


# ---- Parts of a trainer ----

ROWS = [Points(6)[index] for index in range(6)]


class WithPositions(Points):
    iloc = columns = property(lambda self: self.x)


class ByNumber(dict):
    def __getitem__(self, key):
        return ROWS[key] if isinstance(key, int) else super().__getitem__(key)

    def __len__(self):
        return 6


class Incomplete(dict):
    def __missing__(self, key):
        return ROWS[key]

    def __len__(self):
        return 6


class Forwarding:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(ROWS, name)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return ROWS[index]


class WithoutTruth(Points):
    def __bool__(self):
        raise RuntimeError("no truth value")

    def __eq__(self, other):
        raise RuntimeError("not comparable")

    __hash__ = None


class Callable(Points):
    def __call__(self):
        return self


def arrow():
    return datasets.Dataset.from_dict({name: [row[name].tolist() for row in ROWS] for name in ("x", "labels")})


DATA = {
    "list": lambda: list(ROWS),
    "subclass of list": lambda: Rows(ROWS),
    "tuple": lambda: tuple(ROWS),
    "deque": lambda: collections.deque(ROWS),
    "UserList": lambda: collections.UserList(ROWS),
    "namedtuple": lambda: collections.namedtuple("Two", "a b")(*ROWS[:2]),
    "dict by number": lambda: dict(enumerate(ROWS)),
    "OrderedDict by number": lambda: collections.OrderedDict(enumerate(ROWS)),
    "defaultdict by number": lambda: collections.defaultdict(list, enumerate(ROWS)),
    "defaultdict": lambda: collections.defaultdict(lambda: ROWS[0]),
    "proxy of a dict": lambda: types.MappingProxyType(dict(enumerate(ROWS))),
    "UserDict": lambda: collections.UserDict(enumerate(ROWS)),
    "ChainMap": lambda: collections.ChainMap(dict(enumerate(ROWS))),
    "dict with own lookup": lambda: ByNumber(a=1),
    "dict with missing keys": lambda: Incomplete(a=1),
    "dict of sets": lambda: {"a": Points(6), "b": Points(6)},
    "views": lambda: dict(enumerate(ROWS)).values(),
    "file": lambda: "train.csv",
    "DataFrame": lambda: pandas.DataFrame({"x": [1]}),
    "DataFrame by number": lambda: pandas.DataFrame({0: [1]}),
    "Series": lambda: pandas.Series(ROWS),
    "array of objects": lambda: np.array(ROWS, dtype=object),
    "array": lambda: np.zeros((6, 3)),
    "tensor": lambda: torch.zeros(6, 3),
    "array.array": lambda: array.array("i", [1]),
    "generator": lambda: (row for row in ROWS),
    "map": lambda: map(dict, ROWS),
    "object with iloc": lambda: WithPositions(6),
    "object that forwards": Forwarding,
    "object without truth value": lambda: WithoutTruth(6),
    "object that can be called": lambda: Callable(6),
    "class": lambda: Points,
    "Subset": lambda: Subset(Points(8), range(6)),
    "ConcatDataset": lambda: ConcatDataset([Points(3), Points(3)]),
    "datasets": arrow,
    "datasets of arrays": lambda: arrow().with_format("numpy"),
    "stream of datasets": lambda: arrow().to_iterable_dataset(),
    "DatasetDict": lambda: datasets.DatasetDict(train=arrow()),
    "loader": lambda: DataLoader(ROWS, batch_size=2),
    "list of loaders": lambda: [DataLoader(ROWS, batch_size=2)],
    "list of sets": lambda: [Points(6)],
    "list of strings": lambda: ["a"],
    "namespace": lambda: types.SimpleNamespace(a=1),
}


def with_own_loaders(kind):
    class Own(kind):
        def get_train_dataloader(self):
            return DataLoader(ROWS, batch_size=2)

        def get_eval_dataloader(self, eval_dataset=None):
            return DataLoader(ROWS, batch_size=2)

    return Own


def with_own_evaluation(kind):
    class Own(kind):
        def evaluate(self, *args, **kwargs):
            return {"eval_loss": 1.0}

    return Own


def that_replaces_its_data(kind):
    class Own(kind):
        def get_train_dataloader(self):
            self.train_dataset = ROWS
            return super().get_train_dataloader()

    return Own


def with_own_sampler(kind):
    class Own(kind):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(ROWS)

    return Own


EVALUATED = {"eval_strategy": "steps", "eval_steps": 1}
# What is done with a trainer: arguments, subclass, whether it trains and evaluates.
USES = {
    "training": ({}, None, True, False),
    "both": (EVALUATED, None, True, True),
    "evaluation": ({}, None, False, True),
    "own loaders": (EVALUATED, with_own_loaders, True, True),
    "own evaluation": (EVALUATED, with_own_evaluation, True, True),
    "replaced data": ({}, that_replaces_its_data, True, False),
    "own sampler": ({}, with_own_sampler, True, False),
}


def refusals(folder, name, values, uses):
    """Return what portico refuses as the part ``name`` and transformers takes, as lines."""
    lines = []
    for use, (kind, make) in itertools.product(uses, values.items()):
        arguments, base, trains, evaluates = USES[use]

        def run(library, make=make, arguments=arguments, options=(base, trains, evaluates)):
            takes_model = getattr(make, "__name__", "") == "of_model"
            part = {name: make if takes_model else lambda model: make()}
            kwargs = dict(zip(("base", "trains", "evaluates"), options, strict=True))
            return failure(library, folder, arguments, **kwargs, **part)

        ours = run(portico)
        if ours is not None and run(transformers) is None:
            lines.append(f"{name}: {kind} ({use}): {type(ours).__name__}: {ours}")
    return lines


ANYTHING = {
    f"{number}: {value!r:.20}": partial(lambda number: list(anything())[number], number)
    for number, value in enumerate(anything())
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_data_that_transformers_reads(name, use, tmp_path):
    usual = DATA if use in ("both", "own loaders") else dict(list(DATA.items())[::4])
    assert refusals(tmp_path, name, usual, [use]) == []


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", ["train_dataset", "eval_dataset"])
def test_any_data_that_transformers_reads(name, use, tmp_path):
    assert refusals(tmp_path, name, DATA | ANYTHING, [use]) == []


def answer(*args, **kwargs):
    return {"accuracy": 1.0}


class Answers:
    def __call__(self, *args, **kwargs):
        return answer()

    method = __call__

    @staticmethod
    def static(*args, **kwargs):
        return answer()


@functools.wraps(answer)
def wrapped(*args, **kwargs):
    return answer()


@functools.lru_cache
def cached(*args, **kwargs):
    return answer()


FUNCTIONS = {
    "instance": Answers,
    "method": lambda: Answers().method,
    "static method": lambda: Answers.static,
    "partial": lambda: partial(answer, 1),
    "lambda": lambda: lambda *args, **kwargs: answer(),
    "wrapped": lambda: wrapped,
    "cached": lambda: cached,
    "class": lambda: Answers,
    "class of dicts": lambda: dict,
    "list of functions": lambda: [answer],
    "dict of functions": lambda: {"a": answer},
    "module": lambda: torch.nn.Linear(1, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["compute_metrics", "compute_loss_func", "data_collator", "preprocess_logits_for_metrics", "processing_class"],
)
def test_functions_that_transformers_calls(name, tmp_path):
    uses = ["training", "both", "own loaders"]
    assert refusals(tmp_path, name, FUNCTIONS | ANYTHING, uses) == []


class Counting(transformers.TrainerCallback):
    pass


class Similar:
    """The events of a callback, without inheriting from it."""


for _event in [name for name in dir(transformers.TrainerCallback) if name.startswith("on_")]:
    setattr(Similar, _event, lambda self, *args, **kwargs: None)

CALLBACKS = {
    "list": lambda: [Counting()],
    "tuple": lambda: (Counting(),),
    "class": lambda: [Counting],
    "deque": lambda: collections.deque([Counting()]),
    "UserList": lambda: collections.UserList([Counting()]),
    "similar class": lambda: [Similar()],
    "empty": lambda: (),
    "set": lambda: {Counting()},
    "generator": lambda: (callback for callback in [Counting()]),
    "one": Counting,
}


def sgd(model):
    return torch.optim.SGD(model.parameters(), 0.1)


def constant(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)


def pair_in(container):
    def of_model(model):
        return container((sgd(model), None))

    return of_model


def scheduler_of_another_optimizer():
    def of_model(model):
        return None, constant(sgd(model))

    return of_model


OPTIMIZERS = {
    "tuple": pair_in(tuple),
    "list": pair_in(list),
    "deque": pair_in(collections.deque),
    "UserList": pair_in(collections.UserList),
    "iterator": pair_in(iter),
    "array": pair_in(lambda pair: np.array(pair, dtype=object)),
    "scheduler of another optimizer": scheduler_of_another_optimizer(),
}
OPTIMIZER_CLASSES = {
    "tuple": lambda: (torch.optim.SGD, {"lr": 0.1}),
    "list": lambda: [torch.optim.SGD, {"lr": 0.1}],
    "deque": lambda: collections.deque([torch.optim.SGD, {"lr": 0.1}]),
    "iterator": lambda: iter((torch.optim.SGD, {"lr": 0.1})),
    "OrderedDict": lambda: (torch.optim.SGD, collections.OrderedDict(lr=0.1)),
    "proxy": lambda: (torch.optim.SGD, types.MappingProxyType({"lr": 0.1})),
    "partial": lambda: (partial(torch.optim.SGD, momentum=0.1), {"lr": 0.1}),
    "options": lambda: (torch.optim.SGD, Options(lr=0.1)),
}


@pytest.mark.parametrize(
    ("name", "values"),
    [("callbacks", CALLBACKS), ("optimizers", OPTIMIZERS), ("optimizer_cls_and_kwargs", OPTIMIZER_CLASSES)],
)
def test_parts_that_transformers_takes(name, values, tmp_path):
    assert refusals(tmp_path, name, values, ["training"]) == []


# ---- What only some runs read ----


# Read where the trainer is made: arrays as the first, and mappings as the second, are still refused there.
READ_BY_CONSTRUCTORS = ("gradient_accumulation_steps", "include_for_metrics")


@pytest.mark.filterwarnings(UNFINISHED_LOADERS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in USUAL_FIELDS else pytest.mark.slow)
        for name in FIELDS
        if name not in READ_BY_CONSTRUCTORS
    ],
)
def test_arguments_of_trainers_that_only_evaluate(name, tmp_path):
    settings = settings_of(name)
    plain = settings.get(name, transformers.TrainingArguments.__dataclass_fields__[name].default)
    refused = []
    for index, shown in enumerate(values_like(plain)):

        def run(library, index=index):
            return failure(library, tmp_path, settings | {name: values_like(plain)[index]}, trains=False)

        ours = run(portico)
        if ours is not None and not is_refused_on_purpose(name, shown) and run(transformers) is None:
            refused.append(f"{name}={shown!r} ({type(shown).__name__}): {type(ours).__name__}: {ours}")
    assert refused == []


class Saved(dict):
    """A processing class that is a dict, as configurations of some packages are."""

    def save_pretrained(self, folder, **options):
        pathlib.Path(folder, "processing.txt").write_text("saved")


class SavedClass:
    @classmethod
    def save_pretrained(cls, folder, **options):
        pathlib.Path(folder, "processing.txt").write_text("saved")


class CountedPredictions(torchmetrics.Metric):
    """A metric that is called with an ``EvalPrediction``, as any function."""

    def __init__(self):
        super().__init__()
        self.add_state("count", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, prediction):
        self.count += len(prediction.predictions)

    def compute(self):
        return {"count": int(self.count)}


class EveryEvent:
    """A callback whose events are made when they are asked for."""

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def own_save(kind):
    class Own(kind):
        def _save(self, output_dir=None, state_dict=None):
            pathlib.Path(output_dir or self.args.output_dir).mkdir(exist_ok=True, parents=True)

    return Own


def own_loss(kind):
    class Own(kind):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            loss = self.compute_loss_func(outputs, inputs["labels"])
            return (loss, outputs) if return_outputs else loss

    return Own


def own_optimizer(kind):
    class Own(kind):
        def create_optimizer(self, model=None):
            described = self.optimizer_cls_and_kwargs
            name, options = described[:2] if described else (self.optimizer.__name__, {"lr": 0.1})
            self.optimizer = getattr(torch.optim, name)(self.model.parameters(), **options)
            return self.optimizer

        def create_optimizer_and_scheduler(self, num_training_steps):
            self.create_optimizer()
            self.create_scheduler(num_training_steps, self.optimizer)

    return Own


def with_more_outputs(kind):
    class Own(kind):
        num_steps = 0

        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
            self.num_steps += 1
            outputs = {"a": torch.ones(2, 3)} | ({"b": torch.ones(2, 3)} if self.num_steps == 2 else {})
            return torch.tensor(1.0), outputs, torch.ones(2)

    return Own


SAVING = {"save_strategy": "steps", "save_steps": 1}
EVALUATING = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "a"}
# Arguments, parts, subclass, whether the trainer trains and evaluates.
JUDGED_WHERE_THEY_ARE_READ = {
    "name of a tokenizer": (SAVING, {"processing_class": "bert"}, None, False, True),
    "dict that saves itself": (SAVING, {"processing_class": Saved(a=1)}, None, True, False),
    "class that saves itself": (SAVING, {"processing_class": SavedClass}, None, True, False),
    "dict and own saving": (SAVING, {"processing_class": {"a": 1}}, own_save, True, False),
    "loader and own loaders": (
        {"auto_find_batch_size": True},
        {"train_dataset": DataLoader(ROWS, batch_size=2)},
        with_own_loaders,
        True,
        False,
    ),
    "diagnosis of TPUs": ({"debug": "tpu_metrics_debug"}, {}, None, True, False),
    "loss of two arguments": ({}, {"compute_loss_func": lambda out, labels: out["loss"]}, own_loss, True, False),
    "metric of predictions": ({}, {"compute_metrics": CountedPredictions()}, None, True, True),
    "metric in an array": (EVALUATING, {"compute_metrics": lambda p: {"a": np.array([0.5])}}, None, True, False),
    "metric in a list": (EVALUATING | SAVING, {"compute_metrics": lambda p: {"a": [0.5]}}, None, True, False),
    "any optimizer": ({}, {"optimizers": (object(), None)}, None, False, True),
    "class of an optimizer": ({}, {"optimizers": (torch.optim.SGD, None)}, own_optimizer, True, False),
    "name of an optimizer": ({}, {"optimizer_cls_and_kwargs": ("SGD", {"lr": 0.1})}, own_optimizer, True, False),
    "three entries": ({}, {"optimizer_cls_and_kwargs": ("SGD", {"lr": 0.1}, 1)}, own_optimizer, True, False),
    "description of no optimizer": ({}, {"optimizer_cls_and_kwargs": ("a", 1)}, None, False, True),
    "callback of any event": (
        EVALUATING | SAVING,
        {"callbacks": [EveryEvent()], "compute_metrics": lambda p: {"a": 0.5}},
        None,
        True,
        False,
    ),
    "more outputs later": ({}, {}, with_more_outputs, False, True),
    "Liger kernels": ({"use_liger_kernel": True}, {}, None, False, True),
    "compiler in capitals": ({"torch_compile": True, "torch_compile_backend": "EAGER"}, {}, None, True, False),
    "no compiler": ({"torch_compile": True, "torch_compile_backend": "no"}, {}, None, True, False),
}


@pytest.mark.parametrize("case", JUDGED_WHERE_THEY_ARE_READ)
def test_input_is_judged_where_it_is_read(case, tmp_path):
    arguments, parts, base, trains, evaluates = JUDGED_WHERE_THEY_ARE_READ[case]

    def run(library):
        made = {name: lambda model, part=part: part for name, part in parts.items()}
        folder = tmp_path / library.__name__
        return failure(library, folder, arguments, base=base, trains=trains, evaluates=evaluates, **made)

    assert (run(transformers), run(portico)) == (None, None)


@pytest.mark.parametrize(("trains", "evaluates"), [(True, False), (False, True)])
def test_model_that_need_not_generate(trains, evaluates, tmp_path):
    def run(library):
        options = {**QUIET, "max_steps": 2, "predict_with_generate": True}
        with silence():
            args = library.Seq2SeqTrainingArguments(str(tmp_path), **options)
            trainer = library.Seq2SeqTrainer(Line(), args, train_dataset=Points(6), eval_dataset=Points(4))
            if trains:
                trainer.train()
            return trainer.evaluate()["eval_loss"] if evaluates else None

    assert run(portico) == run(transformers)


@pytest.mark.parametrize("num_trials", [None, np.int64(1), 1.0, True])
def test_numbers_of_trials(num_trials, tmp_path):
    def search(library):
        args = library.TrainingArguments(str(tmp_path), **QUIET, max_steps=1)
        data = {"train_dataset": Points(2), "eval_dataset": Points(2)}
        trainer = library.Trainer(None, args, model_init=Line, **data)
        limit = {} if num_trials else {"timeout": 0.01}
        space = {"hp_space": lambda trial: {"seed": trial.suggest_int("seed", 1, 1)}, "backend": "optuna"}
        with silence():
            return trainer.hyperparameter_search(n_trials=num_trials, **space, **limit)

    assert search(portico).hyperparameters == search(transformers).hyperparameters


@pytest.mark.parametrize("num_batches", [1, 2])
def test_loss_that_differentiates_another_one(num_batches, tmp_path):
    def with_two_losses(kind):
        class Own(kind):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                self.accelerator.backward(model(**inputs)["loss"] * 0.5)
                return model(**inputs)["loss"]

        return Own

    def train(library):
        options = {**QUIET, "max_steps": 3, "learning_rate": 0.1, "gradient_accumulation_steps": num_batches}
        with silence():
            args = library.TrainingArguments(str(tmp_path), **options, per_device_train_batch_size=2)
            trainer = with_two_losses(library.Trainer)(Line(), args, train_dataset=Points(12))
            trainer.train()
        return trainer.state.log_history[:-1], trainer.model.linear.weight.tolist()

    assert train(portico) == train(transformers)
