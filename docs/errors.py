"""The catalogue of errors and warnings, gathered from the source; running it writes the page next to this file.

A message is what is raised or logged, with its values replaced by their names. By the rule of the project it says what
was received and what to set; it is split there. A test fails if a module with messages has no topic below.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).with_suffix(".md")
SOURCES = Path(__file__).parents[1] / "src"


class Topic(NamedTuple):
    """A section: its heading, what to know first, and its modules, by the start of their path."""

    heading: str
    text: str
    modules: tuple[str, ...]


# The topic with the longest match of a module's path gets its messages.
TOPICS = (
    Topic(
        "Training arguments and trainers",
        "Raised when the arguments or the trainer are created, before any work. [Training arguments]"
        "(training_arguments.md) lists the refused values of every field and what the fields without effect announce; "
        "[corrections](corrections.md) has the warnings about numbers of transformers that are wrong.",
        (
            "portico/__init__.py",
            "portico/compat/annotations.py",
            "portico/arguments.py",
            "portico/loop/corrections.py",
            "portico/deprecated.py",
            "portico/errors.py",
            "portico/compat/transformers.py",
            "portico/imports.py",
            "portico/trust/",
            "portico/compat/lightning.py",
            "portico/compat/older.py",
            "portico/compat/releases.py",
            "portico/loop/",
            "portico/callbacks.py",
            "portico/loop/model_setup.py",
            "portico/loop/optim.py",
            "portico/loop/plan.py",
            "portico/rules.py",
            "portico/seq2seq.py",
            "portico/trainer.py",
            "portico/unknown_arguments.py",
            "portico/compat/tree.py",
            "portico/loop/validation.py",
        ),
    ),
    Topic(
        "Datasets and loaders",
        "Raised when a file is read or a loader is made. A record that cannot be used is named by its file and line; "
        "`skip_invalid=True` (`data.skip_invalid=true`) leaves such records out.",
        ("portico/data/",),
    ),
    Topic(
        "Checkpoints and resuming",
        "A damaged checkpoint is refused when it is named; `resume_from_checkpoint=True` skips it and takes the one "
        "before.",
        ("portico/checkpoint/",),
    ),
    Topic(
        "Devices and processes",
        "What several processes, a strategy or a precision cannot do, and what `trainer.accelerator` refuses.",
        ("portico/compat/accelerate.py", "portico/distributed/"),
    ),
    Topic("Hyperparameter search and uploads", "", ("portico/hp_search.py", "portico/hub.py")),
    Topic(
        "Command line and configuration",
        "`portico train ... --help` lists the keys of an experiment. The command line prints one paragraph and no "
        "traceback; `HYDRA_FULL_ERROR=1` shows one.",
        (
            "portico/__main__.py",
            "portico/cli/",
            "portico/experiments/experiment.py",
            "portico/experiments/from_scratch.py",
            "portico/experiments/settings.py",
        ),
    ),
    Topic(
        "Sweeps",
        "",
        (
            "hydra_plugins/",
            "portico/cli/jobs.py",
            "portico/cli/studies.py",
            "portico/cli/sweeps.py",
            "portico/report/",
        ),
    ),
    Topic(
        "Scripts: run, verify, preflight, replay",
        "",
        ("portico/observers.py", "portico/commands/", "portico/inspection/"),
    ),
    Topic("Other tasks", "Classification, language modeling, generation and images.", ("portico/tasks/",)),
    Topic(
        "Reading comprehension: data",
        "What a question or a context must look like is in [reading comprehension](mrc.md).",
        ("portico/mrc/corpus/", "portico/mrc/datasets/", "portico/mrc/multi_source.py"),
    ),
    Topic(
        "Reading comprehension: models and training",
        "",
        ("portico/mrc/", "portico/mrc/features/", "portico/mrc/models/"),
    ),
    Topic(
        "Reading comprehension: answers and metrics",
        "",
        ("portico/mrc/inference.py", "portico/mrc/metrics/", "portico/mrc/postprocess/"),
    ),
    Topic("Reading comprehension: reports", "", ("portico/mrc/report/", "portico/mrc/question_results.py")),
    Topic("AllenNLP's trainer", "", ("portico/gradient_descent/",)),
    Topic("IPUs", "See [IPUs](ipu.md).", ("portico/ipu/",)),
    Topic("ONNX Runtime", "See [ONNX Runtime](ort.md).", ("portico/ort/",)),
)

_HEAD = """\
# Errors and warnings

Every message of portico, with what to do. Search this page for a few words of yours; *values*, which are in italics or
between `<` and `>`, differ. Where transformers has the same error, the message begins with its sentence.

An error in what you gave is a `portico.InputError`, raised as early as it can be known. It is a `ValueError` too, and
where transformers raises another type, also of that type: `except ValueError` keeps working in existing scripts. A
missing package is an `ImportError` as well, and names the extra to install. After a warning the run continues as the
warning says. Where the second column is empty, there is nothing to correct, or the message has been transformers' or
AllenNLP's for long and says it in its own words.

This page is generated: `python docs/errors.py`.
"""

_PACKAGES = Topic("Missing packages", "", ())
_WARNINGS = ("warn", "warning", "warning_once")
# How a sentence begins that says what to do.
_IMPERATIVES = (
    "Add|Attach|Call|Change|Check|Choose|Consider|Correct|Count|Define|Delete|Double-check|Either set|Evaluate|Fix"
    "|Give|If|Install|Keep|Leave|Let|Load|Log|Lower|Make|Move|Name|Otherwise set|Pad|Pass|Remove|Restore|Return|Run"
    "|See|Set|Specify|Start|To compare|To fix this|To silence this|To use|Train|Use|Write|[Yy]ou should|Did you mean"
)
# Reasons that another message ends with, which says what to do about all of them.
_REASONS = {
    ("portico/checkpoint/", "ValueError"): "Resume from the complete checkpoint that the message names, or from none.",
    ("portico/cli/jobs.py", "ValueError"): "Name another file, or an address of a database, as the storage.",
    ("portico/mrc/datasets/", "InvalidRecord"): "Correct the record, or leave such records out: `skip_invalid=True`.",
    ("portico/mrc/features/storage.py", "ValueError"): "Delete the folder; the features are made again.",
    ("portico/mrc/postprocess/calibration.py", "ValueError"): "Delete the file, or calibrate the reader again.",
}
# What ends with the message of another error has that one's advice.
_QUOTED = re.compile(r": <(error|obstacle)>$")
# Caught where they are raised, or Python's own: no user reads them.
_INTERNAL = (
    "a <name> is not a plain value",
    "no input of the graph determines the size",
    "module <name> has no attribute",
)
_ADVICE = re.compile(rf"(?<=[.:;,>)]) (?=(?:{_IMPERATIVES})\b)")


class Message(NamedTuple):
    """A message: where it is, its text with names for values, and whether it is a warning or about a package.

    ``raised`` is the name of its class.
    """

    module: str
    text: str
    kind: str
    raised: str


class Raise(NamedTuple):
    """A ``raise``: its module, the function around it with its classes, the name of the error, and its message.

    The message is empty if it comes from elsewhere, as another error's does.
    """

    module: str
    function: str
    error: str
    text: str


@cache
def _trees() -> dict[str, ast.Module]:
    return {
        path.relative_to(SOURCES).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("hydra_plugins", "portico")
        for path in sorted((SOURCES / folder).rglob("*.py"))
    }


def raises() -> list[Raise]:
    """Return every ``raise`` of all modules; one that only raises a caught error again is left out."""
    return [found for module, tree in _trees().items() for found in _raises_of(module, tree, tree, ())]


def _raises_of(module: str, tree: ast.Module, node: ast.AST, names: tuple[str, ...]) -> Iterator[Raise]:
    for child in ast.iter_child_nodes(node):
        is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        inner = (*names, child.name) if is_scope else names
        if isinstance(child, ast.Raise) and child.exc is not None:
            error = child.exc
            arguments = error.args if isinstance(error, ast.Call) else []
            texts = _texts(arguments[0], tree) if arguments else []
            name = ast.unparse(error.func if isinstance(error, ast.Call) else error)
            yield Raise(module, ".".join(names), name, texts[0] if texts else "")
        yield from _raises_of(module, tree, child, inner)


@cache
def messages() -> list[Message]:
    """Return the messages of all modules, those of one module as they stand in it."""
    trees = _trees()
    errors = _error_classes(trees.values())
    return [message for module, tree in trees.items() for message in _messages_of(module, tree, errors)]


def _messages_of(module: str, tree: ast.Module, errors: set[str]) -> Iterator[Message]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        kind = "warning" if name in _WARNINGS else "package" if name == "MissingPackageError" else "error"
        if name in errors or name in _WARNINGS:
            for text in _texts(node.args[0], tree):
                if not text.startswith(_INTERNAL):
                    yield Message(module, _with_arguments(text, node.args[1:]), kind, name)


def _error_classes(trees: Iterable[ast.Module]) -> set[str]:
    """Return the names of portico's own exceptions, found by their bases, and of Python's that users meet."""
    found = {"AttributeError", "InvalidRecord", "KeyError", "RuntimeError", "TypeError", "ValueError"}
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    while added := {one.name for one in classes if found & {ast.unparse(base) for base in one.bases}} - found:
        found |= added
    return {name for name in found if name.endswith(("Error", "Record", "Exception")) or hasattr(builtins, name)}


def _texts(node: ast.expr, tree: ast.Module, within: frozenset[str] = frozenset()) -> list[str]:
    """Return the texts that an expression may be; empty if they come from elsewhere, as another error's do.

    Names ``within`` are being looked up: one that is made of itself has no text.
    """
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            begun = "".join(_part(part, tree) for part in parts[:-1])
            ends = _ends(parts[-1], tree) if isinstance(parts[-1], ast.FormattedValue) else []
            return [begun + end for end in ends or [_part(parts[-1], tree)]]
        case ast.BinOp(left=left, right=right):
            return ["".join(text for side in (left, right) for text in _texts(side, tree, within)[:1])]
        case ast.IfExp(body=body, orelse=orelse):
            return [*_texts(body, tree, within), *_texts(orelse, tree, within)]
        case ast.Name(id=name) | ast.Call(func=ast.Name(id=name)) if name in within:
            return []
        case ast.Name(id=name):
            assigned = [one for one in ast.walk(tree) if isinstance(one, ast.Assign)]
            values = [one.value for one in assigned if name in map(ast.unparse, one.targets)]
            others = [value for value in values if not isinstance(value, ast.Name)]
            return [text for value in others for text in _texts(value, tree, within | {name})]
        case ast.Call(func=ast.Name(id=name)):
            functions = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name == name]
            parts = [part for function in functions for part in ast.walk(function)]
            returned = [part.value for part in parts if isinstance(part, ast.Return) and part.value is not None]
            return [text for value in returned for text in _texts(value, tree, within | {name})]
    return []


def _part(node: ast.expr, tree: ast.Module) -> str:
    match node:
        case ast.Constant(value=text):
            return str(text)
        case ast.FormattedValue(
            value=ast.Call(func=ast.Name(id="suggestion" | "nearest_names")) | ast.Name(id="meant")
        ):
            return "; did you mean `<nearest>`?"
        case ast.FormattedValue(value=ast.Name(id=name) as constant) if name.isupper():
            return next(iter(_texts(constant, tree)), f"<{_name(node)}>")
    return f"<{_name(node)}>"


def _ends(node: ast.FormattedValue, tree: ast.Module) -> list[str]:
    """Return the texts that a value at the end of a message may be, if a function of its module gives them."""
    is_call = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name)
    return _texts(node.value, tree) if is_call and node.value.func.id.startswith("_") else []


def _name(node: ast.expr) -> str:
    """Return a word for a value of a message."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            # A constant says in capitals what its words are.
            return name.lower().strip("_").replace("_", " ") if name.isupper() else name.strip("_")
        case ast.Constant(value=value):
            return str(value)
        case ast.Call(func=ast.Attribute(attr="join"), args=[values]):
            return _name(values)
        case ast.Call(args=[first, *_]) | ast.Subscript(value=first) | ast.GeneratorExp(elt=first):
            return _name(first)
        case ast.Call(func=ast.Attribute(value=inner)) | ast.FormattedValue(value=inner):
            return _name(inner)
    return "value"


def _with_arguments(text: str, arguments: list[ast.expr]) -> str:
    """Return a message of a logger with the names of its arguments in place of ``%s``."""
    names = iter(arguments)
    return re.sub(r"%[-.\d]*[sdrfg](?!\w)", lambda _: f"<{_name(next(names, ast.Constant('value')))}>", text)


def topic_of(module: str) -> Topic:
    matching = [(len(start), topic) for topic in TOPICS for start in topic.modules if module.startswith(start)]
    if not matching:
        raise LookupError(f"{module} has messages, but no topic of docs/errors.py names it; add it to one.")
    return max(matching, key=lambda one: one[0])[1]


def split(text: str) -> tuple[str, str]:
    """Return the cause and the cure of a message; the cure is empty if the message is one statement."""
    cause, semicolon, cure = text.partition("; ")
    if not semicolon:
        parts = _ADVICE.split(text, maxsplit=1)
        cause, cure = (parts[0], parts[1]) if len(parts) > 1 else (text, "")
    return cause.rstrip(" .;,") if cure else cause.strip(), cure[:1].upper() + cure[1:]


def _markdown(text: str) -> str:
    """Return a text as a cell: values in italics, code as it is, nothing else that Markdown would read."""
    parts = " ".join(text.split()).split("`")
    for place in range(0, len(parts), 2):
        escaped = re.sub(r"([\\*\[\]]|\b_|_\b)", r"\\\1", parts[place])
        parts[place] = re.sub(r"<([^<>]*)>", lambda value: f"*{value[1].strip()}*", escaped)
    return "`".join(parts).replace("|", "\\|")


def told(message: Message) -> tuple[str, str]:
    """Return the cause and the cure of a message; that of the message around it if it is a part of one."""
    cause, cure = split(message.text)
    if not cure and message.kind == "error" and _QUOTED.search(cause):
        cure = "See the message at its end."
    for (start, raised), around in _REASONS.items():
        if not cure and message.raised == raised and message.module.startswith(start):
            cure = around
    return cause, cure


def _table(title: str, found: set[Message]) -> str:
    if not found:
        return ""
    rows = sorted({(_markdown(cause), _markdown(cure)) for cause, cure in map(told, found)})
    rows.sort(key=lambda row: re.sub(r"[^a-z ]", "", row[0].lower()))
    return f"\n| {title} | What to do |\n| --- | --- |\n" + "".join(f"| {cause} | {cure} |\n" for cause, cure in rows)


def page() -> str:
    """Return the page as Markdown: for each topic a table of its errors and one of its warnings."""
    # A single word is a name that another module makes a message of.
    found = [one for one in messages() if len(one.text.split()) > 2]
    sections = [f"\n## {_PACKAGES.heading}\n{_table('Error', {one for one in found if one.kind == 'package'})}"]
    for topic in TOPICS:
        own = [one for one in found if one.kind != "package" and topic_of(one.module) is topic]
        tables = [_table(kind.capitalize(), {one for one in own if one.kind == kind}) for kind in ("error", "warning")]
        if any(tables):
            text = f"\n{topic.text}\n" if topic.text else ""
            sections.append(f"\n## {topic.heading}\n{text}{''.join(tables)}")
    return _HEAD + "".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
