"""Why a run or an evaluation failed: a call that does not fit the user's function, or data that make no batch.

Nothing here is looked at before something has failed.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.data import DataLoader

from portico.compat import transformers as hf_compat
from portico.errors import InputError, InputKeyError, InputRuntimeError, InputTypeError

if TYPE_CHECKING:
    from portico.compat.annotations import DataCollator, Loader

# ---- Why a call failed ----

_SIGNATURES = {
    "compute_loss_func": inspect.signature(lambda outputs, labels, *, num_items_in_batch: None),
    "compute_metrics": inspect.signature(lambda prediction: None),
    "preprocess_logits_for_metrics": inspect.signature(lambda logits, labels: None),
    "data_collator": inspect.signature(lambda examples: None),
}
_EVENT = inspect.signature(lambda args, state, control, **kwargs: None)
# Python's words for arguments that do not fit the parameters of a function.
_MISFIT = re.compile(r"([\w.<>]+)\(\) (?:missing|takes|got)\b.*")
_LIBRARIES = ("portico", "transformers", "lightning", "torch")


def explain_call(error: Exception, trainer: Any) -> None:
    """Raise an ``InputTypeError`` if a library called a function of the user with arguments that it does not take.

    That is a function given to the trainer, an event of a callback, or an override. Errors inside of them are left.
    """
    if isinstance(error, AssertionError) and "requires metric_for_best_model" in str(error):
        error.add_note(
            "Set `metric_for_best_model` in the training arguments, such as 'loss', and an `eval_strategy`."
        )
    misfit = _MISFIT.search(str(error)) if isinstance(error, TypeError) and not isinstance(error, InputError) else None
    if misfit is None or _module_of_origin(error).partition(".")[0] not in _LIBRARIES:
        return
    for name, function, expected in _functions_of_user(trainer):
        if _get_qualified_name(function) == misfit[1] and not (name in _SIGNATURES and _takes(function, expected)):
            raise InputTypeError(
                f"`{name}` is called with the arguments `{_bare(expected)}`, and does not take them: {misfit[0]}."
                f"{_difference(function, expected)} Define it with parameters for these."
            ) from error


def _module_of_origin(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))


def _functions_of_user(trainer: Any) -> Iterator[tuple[str, Callable[..., Any], inspect.Signature]]:
    for name, expected in _SIGNATURES.items():
        if callable(part := getattr(trainer, name, None)):
            yield name, part, expected
    for callback in trainer.callback_handler.callbacks:
        for name in dir(type(callback)):
            if name.startswith("on_"):
                yield f"{type(callback).__name__}.{name}", getattr(callback, name), _EVENT
    kinds = type(trainer).__mro__
    for name in {name for kind in kinds if not _is_own(kind) for name in vars(kind)}:
        override = inspect.getattr_static(trainer, name)
        hook = next((vars(kind)[name] for kind in kinds if _is_own(kind) and name in vars(kind)), None)
        if inspect.isfunction(override) and inspect.isfunction(hook):
            method = override.__get__(trainer)
            yield f"{type(trainer).__name__}.{name}", method, inspect.signature(hook.__get__(trainer))


def _takes(function: Callable[..., Any], expected: inspect.Signature) -> bool:
    """Return whether a function takes the arguments; several lambdas have the same name."""
    keywords = [param.name for param in expected.parameters.values() if param.kind is param.KEYWORD_ONLY]
    try:
        inspect.signature(function).bind(*range(len(expected.parameters) - len(keywords)), **dict.fromkeys(keywords))
    except (TypeError, ValueError):
        return False
    return True


def _bare(signature: inspect.Signature) -> inspect.Signature:
    parameters = [param.replace(annotation=param.empty) for param in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def _is_own(kind: type) -> bool:
    return kind.__module__.startswith("portico.")


def _get_qualified_name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__qualname__"):
        function = function.__call__  # the method of an object
    return str(getattr(function, "__func__", function).__qualname__)


def _difference(function: Callable[..., Any], expected: inspect.Signature) -> str:
    """Return which required parameters a function lacks, which Python does not say, and what it may be instead."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return ""
    kinds = {param.kind for param in parameters}
    names = {param.name for param in parameters}
    if expected is _EVENT:
        return "" if inspect.Parameter.VAR_KEYWORD in kinds else " Events have more arguments: end with `**kwargs`."
    positional = [param for param in parameters if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)]
    lacking = [
        param.name
        for place, param in enumerate(expected.parameters.values())
        if param.default is param.empty and param.name not in names
        if param.kind is param.KEYWORD_ONLY
        or (place >= len(positional) and inspect.Parameter.VAR_POSITIONAL not in kinds)
    ]
    said = f" It has no parameter for {' and '.join(f'`{name}`' for name in lacking)}." if lacking else ""
    if expected is _SIGNATURES["compute_loss_func"] and len(names) == 1:
        said += " If it is meant as `compute_metrics`, give that by keyword: it follows `compute_loss_func` now."
    return said


# ---- Why a batch failed ----

_NUM_EXAMPLES_LOOKED_AT = 32
_TOKENIZERS = ("tokenizer", "processing_class", "processor", "feature_extractor", "image_processor")
_LABELS = ("label", "labels", "label_ids")
_EXPLAINED = {TypeError: InputTypeError, KeyError: InputKeyError, RuntimeError: InputRuntimeError}
# What torch says of positions, and of labels, that a model does not have.
_NO_POSITION = re.compile(r"index out of range in self|is out of bounds for dimension|must match")
_NO_CLASS = re.compile(r"Target (-?\d+) is out of bounds")
_OTHER_SIZE = re.compile(r"Expected input batch_size .* to match target batch_size")
_FRACTIONS = re.compile(r"scalar type|Target size .* must be the same")
_OF_LABELS = re.compile(r"label|loss|NoneType")


def explain_failure(error: Exception, loader: "Loader", argument: str, data: object, model: nn.Module) -> None:
    """Raise an ``InputError`` if ``error`` comes from making batches of ``data``, the trainer's ``argument``.

    So do numbers in ``data`` that are too large for the configuration of ``model``. Otherwise add a note to ``error``
    about columns of ``data`` that are not in the batches of ``loader``, since a model that misses an input does not
    name the column.
    """
    if isinstance(error, InputError) or not isinstance(loader, DataLoader) or loader.collate_fn is None:
        return
    reason = note = None
    with suppress(Exception):  # the data may fail in another way, or be used up
        examples = _first_examples(loader.dataset)
        cause = _failure_of(loader.collate_fn, examples)
        if type(cause) is type(error) and str(cause) in str(error):
            why = _what_is_missing(cause, data, examples, loader.collate_fn) or _why_not_batched(examples)
            reason = f"({cause}): {why}"
        elif cause is None:
            batch = loader.collate_fn(_first_examples(loader.dataset))
            given = set(batch)
            note = _describe_left_out(data, given)
            # The default collator leaves text out.
            in_words = {name: examples[0][name] for name in _LABELS if isinstance(examples[0].get(name), str)}
            if in_words and not given.intersection(_LABELS) and _OF_LABELS.search(str(error)):
                reason = f"with labels: {_why_not_batched([in_words])}"
            misfit = _misfit(str(error), batch, model)
            if misfit is not None:
                reason = f"that {type(model).__name__} takes ({error}): {misfit}"
    if reason is not None:
        kind = next((ours for theirs, ours in _EXPLAINED.items() if isinstance(error, theirs)), InputError)
        raise kind(f"`{argument}` cannot be made into batches {reason}") from error
    if note is not None:
        error.add_note(f"`{argument}`: {note}")


def _misfit(said: str, batch: Mapping[str, Any], model: nn.Module) -> str | None:
    """Return which numbers of a batch the model, by its configuration, cannot have, if torch ``said`` so."""
    config: Any = getattr(model, "config", None)
    tokens, labels = batch.get("input_ids"), batch.get("labels")
    vocabulary = getattr(config, "vocab_size", None)
    if tokens is not None and vocabulary and "out of range in self" in said and int(tokens.max()) >= vocabulary:
        return (
            f"`input_ids` holds {int(tokens.max())}, and its `vocab_size` is {vocabulary}; use the tokenizer of the "
            "model, or call `model.resize_token_embeddings(len(tokenizer))`."
        )
    longest = num_positions(model, config) if _NO_POSITION.search(said) else None
    if tokens is not None and longest and tokens.shape[-1] > longest:
        return (
            f"`input_ids` has rows of {tokens.shape[-1]} tokens, and it has positions for {longest}; let the "
            f"tokenizer cut them, by `truncation=True, max_length={longest}`."
        )
    if labels is None or "Classification" not in type(model).__name__:
        return None
    is_one_hot = labels.dim() == 2 and labels.shape[-1] == config.num_labels and not labels.is_floating_point()
    if is_one_hot and _OTHER_SIZE.search(said):
        return (
            f"`labels` holds {config.num_labels} numbers for each example; give the index of the class, their "
            "`argmax`, or floats, which train several classes of an example at once."
        )
    if _FRACTIONS.search(said) and labels.is_floating_point() and labels.dim() == 1 and config.num_labels > 1:
        return (
            f"`labels` holds a fraction for each example, and its `num_labels` is {config.num_labels}; give the index "
            "of each class, or load it with `num_labels=1`, which is a regression."
        )
    target = _NO_CLASS.search(said)
    label = int(target[1]) if target else 0
    if 0 <= label < config.num_labels:
        return None
    advice = f"load it with `num_labels={label + 1}` or more, or " if label > 0 else "give -100 to leave one out, or "
    return f"`labels` holds {label}, and its `num_labels` is {config.num_labels}; {advice}count labels from 0."


def num_positions(model: nn.Module, config: Any) -> int | None:
    """Return the longest row for which the model has position embeddings; ``None`` if it has none, or any length."""
    size: int | None = getattr(config, "max_position_embeddings", None)
    if size is None:
        return None
    for name, part in model.named_modules():
        # Some, as BART's, have two more; RoBERTa counts from the index of the padding.
        is_table = isinstance(part, nn.Embedding) and name.endswith(("position_embeddings", "positions", "wpe"))
        if is_table and 0 <= part.num_embeddings - size <= 2:
            return size if part.padding_idx is None else size - part.padding_idx - 1
    return None


def _describe_left_out(data: Any, given: set[str]) -> str | None:
    """Return a sentence about the columns of ``data`` that are missing in the batches, which have ``given``."""
    columns = getattr(data, "column_names", None) or _columns_of(_first_examples(data))
    # The default collator makes `labels` of either name.
    left_out = set(columns) - given - ({"label", "label_ids"} if "labels" in given else set())
    if not left_out:
        return None
    labels = "" if given.intersection(_LABELS) else "labels are numbers in a column `labels`; "
    return (
        f"the model got {', '.join(sorted(given))}, and not the columns {', '.join(sorted(left_out))}. A tokenizer "
        f"makes inputs of text; {labels}columns that `forward` does not take stay with `remove_unused_columns=False`."
    )


def _first_examples(data: Any) -> list[Any]:
    if hf_compat.has_length(data) and hasattr(data, "__getitem__"):
        return [data[index] for index in range(min(len(data), _NUM_EXAMPLES_LOOKED_AT))]
    return list(islice(data, _NUM_EXAMPLES_LOOKED_AT))


def _columns_of(examples: list[Any]) -> set[str]:
    return set(examples[0]) if examples and isinstance(examples[0], Mapping) else set()


def _failure_of(collate: "DataCollator", examples: list[Any]) -> Exception | None:
    try:
        collate(list(examples))
    except Exception as error:  # whatever a collator raises
        return error
    return None


def _what_is_missing(cause: Exception, data: Any, examples: list[Any], collate: Any) -> str | None:
    """Return which column, or which part of the collator, a collator did not find; None if it failed otherwise."""
    column = cause.args[0] if isinstance(cause, KeyError) and cause.args else None
    columns = getattr(data, "column_names", None) or _columns_of(_first_examples(data))
    if column in columns and column not in _columns_of(examples):
        return (
            f"the column `{column}` is left out, since `forward` does not take it; set `remove_unused_columns=False` "
            "to keep it for the `data_collator`."
        )
    collator = getattr(collate, "data_collator", collate)  # behind the filter of columns
    missing = next((name for name in _TOKENIZERS if getattr(collator, name, collator) is None), None)
    if isinstance(cause, AttributeError) and "'NoneType' object" in str(cause) and missing:
        return f"`{missing}` of the `{type(collator).__name__}` is None; give it the one that made the examples."
    return None


def _why_not_batched(examples: list[Any]) -> str:
    """Return what is wrong with examples that a collator refused, and what to do."""
    first = examples[0]
    if not isinstance(first, Mapping):
        return (
            f"its first example is a {type(first).__name__}, and not a dict of the model's arguments by name; let the "
            "data set return dicts, or give a `data_collator` that makes batches of its examples."
        )
    for name, value in first.items():
        if isinstance(value, str):
            advice = (
                f"the index of each class, as `data.class_encode_column({name!r})` of datasets makes it, which also "
                "keeps the names in a `ClassLabel`"
                if name in _LABELS
                else "`input_ids` of a tokenizer"
            )
            return f"`{name}` holds strings ({value[:40]!r}); give numbers: {advice}."
    for name in first:
        if any(example.get(name) is None for example in examples):
            return f"`{name}` is None in some examples; fill them, or leave these examples out, by `data.filter`."
        sizes = {len(example[name]) for example in examples if hasattr(example.get(name), "__len__")}
        if len(sizes) > 1:
            return (
                f"`{name}` has rows of {min(sizes)} to {max(sizes)} values; give the tokenizer as `processing_class`, "
                "or a `data_collator` that pads, such as `DataCollatorWithPadding(tokenizer)`."
            )
    return "give examples that the `data_collator` takes, or another `data_collator`."
