"""The groups of a reading comprehension experiment: one class each, whose fields are the keys of the group.

You can replace each class with your own (``data._target_=my_package.MyData``), which needs these methods:

* ``data``: ``load()`` returns ``(train, validation)``, two lists of records with ``id``, ``question``, ``context`` and
  ``answers``; or a list of pairs, one for each source.
* ``model``: ``load(texts, preprocess)`` returns ``(model, tokenizer)``; a new tokenizer is trained on ``texts``.
* ``preprocess``: ``trainer_parts(sources, model, tokenizer)`` returns arguments of the trainer: ``train_dataset``,
  ``eval_dataset``, ``eval_examples``, ``data_collator``.
* ``postprocess``: ``build(model, tokenizer, version_2_with_negative)`` returns the ``post_process_function``.
* ``metric``: any ``compute_metrics``, or a ``torchmetrics.Metric``; called with the result of the post-processing, it
  returns metrics by name.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerFast

from portico.data.sources import MAX_GZIP_RATIO, paths_of
from portico.errors import InputError, naming
from portico.experiments.from_scratch import check_unshaped
from portico.experiments.settings import collect_further_keys, further_keys, schema_of, setting
from portico.loop.model_setup import set_attention
from portico.mrc.collators import FiDDataCollator, head_collator
from portico.mrc.corpus import generate
from portico.mrc.datasets import read_examples, read_hub
from portico.mrc.datasets.reader import format_named
from portico.mrc.features.featurizer import Featurizer, check_window, window_featurizer
from portico.mrc.features.labels import Subsampling
from portico.mrc.generative import (
    SMALL_T5,
    GeneratedAnswerProcessing,
    GenerativeFeaturizer,
    load_generator,
    new_generator,
)
from portico.mrc.models.loading import (
    PLAIN_HEAD,
    gives_loss_alone,
    head_of,
    head_post_processing,
    load_reader,
    row_length_in_training,
)
from portico.mrc.models.small_bert import SMALL_BERT, new_reader
from portico.mrc.packing import enable_packing
from portico.mrc.postprocess.ranking import SupportedSpanScorers
from portico.mrc.postprocess.span_postprocessing import Mode, SpanPostProcessing
from portico.mrc.postprocess.streaming import SpanSearch
from portico.rules import check_values
from portico.trust.names import TARGET, data_only, import_target

_RECORD_KEYS = ("id", "question", "context", "answers")


class Source(NamedTuple):
    """The examples of one source, as :func:`~portico.mrc.datasets.read_examples` makes them."""

    train: list[Mapping[str, Any]]
    validation: list[Mapping[str, Any]]


@data_only
@dataclass(kw_only=True)
class MRCData:
    """The group ``data``: questions of the embedded corpus, of files, or of a dataset of the hub."""

    train_file: str | list[str] | None = None
    """Questions to train on, instead of the embedded corpus: a path, a glob, a folder, or a list of these."""
    validation_file: str | list[str] | None = None
    """Questions to evaluate on; set both files or neither."""
    predict_file: str | None = None
    """Questions that mode=predict answers."""
    dataset_name: str | None = None
    """A dataset of the hub, instead of files; needs the package datasets and a connection or a cached copy."""
    dataset_config_name: str | None = None
    """Configuration of the dataset."""
    train_split: str = "train"
    """Split of the dataset to train on."""
    validation_split: str = "validation"
    """Split of the dataset to evaluate on."""
    format: str | None = None
    """Format of the records, one of FORMATS in portico.mrc.datasets; null: detected from the first record."""
    skip_invalid: bool = False
    """Leave unusable records out, with a warning, instead of stopping."""
    max_gzip_ratio: float = setting(MAX_GZIP_RATIO, least=1, is_finite=False)
    """How many times as large as a gzip file its content may be; 64 MiB are always read."""
    num_train: int = setting(20000, least=1)
    """Questions of the embedded corpus to train on."""
    num_validation: int = setting(1000, least=1)
    """Questions of the embedded corpus to evaluate on."""
    seed: int = 0
    """Seed of the embedded corpus only; args.seed is the seed of the training."""
    max_train_samples: int | None = setting(None, least=1)
    """Train only on the first of the questions."""
    max_eval_samples: int | None = setting(None, least=1)
    """Evaluate only on the first of the questions."""
    sources: list[dict[str, Any]] | None = None
    """Several sources: for each the keys of this group that differ, as in [{train_file: a.json, ...}, {seed: 1}]."""

    def load(self) -> list[Source]:
        """Return the examples of each source; raises an ``InputError`` for unusable settings, files or records."""
        return [source._load() for source in self._each_source()]

    def load_validation(self) -> list[Any]:
        """Return the questions of all sources that a run is evaluated on; files of training questions are not read."""
        return [example for source in self._each_source() for example in source._validation()]

    def _each_source(self) -> "list[MRCData]":
        if self.sources is None:
            return [self]
        if not self.sources or not all(isinstance(source, Mapping) for source in self.sources):
            raise InputError(
                f"`data.sources={self.sources}` is not a list of sources; set it to a list with the keys of `data` "
                "that differ, as in data.sources=[{train_file: a.json, validation_file: b.json}, {seed: 1}]."
            )
        kind: type = type(self)
        rules = {name: setting.rule for name, setting in schema_of(kind).known.items() if name != "sources"}
        unknown = sorted({key for source in self.sources for key in source} - set(rules))
        if unknown:
            raise InputError(
                f"`data.sources` sets {', '.join(unknown)}, which `data` does not have; a source has: "
                f"{', '.join(sorted(rules))}."
            )
        for source in self.sources:
            check_values("data.sources", source, rules)
        return [replace(self, sources=None, **source) for source in self.sources]

    def _load(self) -> Source:
        train, validation = self._both_sets()
        return Source(train[: self.max_train_samples], validation[: self.max_eval_samples])

    def _validation(self) -> list[Any]:
        if self.dataset_name is not None or not (self.train_file and self.validation_file):
            return self._load().validation
        found = read_examples(self.validation_file, **self._options(), max_gzip_ratio=self.max_gzip_ratio)
        return found[: self.max_eval_samples]

    def _options(self) -> dict[str, Any]:
        if self.format is not None:
            format_named(self.format, "data.format")
        return {"format": self.format, "skip_invalid": self.skip_invalid}

    def _both_sets(self) -> tuple[list[Any], list[Any]]:
        files = {"train_file": self.train_file, "validation_file": self.validation_file}
        given = {name: file for name, file in files.items() if file is not None}
        options = self._options()
        if self.dataset_name is not None:
            if given:
                name, file = next(iter(given.items()))
                raise InputError(
                    f"`data.dataset_name={self.dataset_name}` and `data.{name}={file}` both name the questions; set "
                    "one of them, and null for the other."
                )
            read = partial(read_hub, self.dataset_name, self.dataset_config_name, **options)
            return read(split=self.train_split), read(split=self.validation_split)
        if not given:
            if self.format is not None:
                raise InputError(
                    f"`data.format={self.format}` says how questions are read, but nothing says where they are; set "
                    "data.train_file and data.validation_file, or data.dataset_name, or choose data=embedded."
                )
            return generate(num_train=self.num_train, num_validation=self.num_validation, seed=self.seed)
        for name, file in given.items():
            missing = next((other for other in files if other not in given), None)
            if missing is not None:
                raise InputError(
                    f"`data.{name}={file}` came without `data.{missing}`; set both to files of questions, or neither "
                    "to use the embedded corpus."
                )
            if not file:
                raise InputError(f"`data.{name}={file}` names no file; set it to a path, a glob, a folder, or a list.")
            paths_of(file)  # both are looked for before the first is read, which may take long
        # As for `run_qa`, a question may be given several times to train on, such as with other contexts.
        train, validation = (
            read_examples(file, **options, max_gzip_ratio=self.max_gzip_ratio, ids_may_repeat=name == "train_file")
            for name, file in given.items()
        )
        return train, validation


def load_sources(data: Any) -> list[Source]:
    """Return the examples of each source of an object with ``load()``, or of the keys of the group ``data``.

    Raises:
        InputError: If the examples cannot be loaded, or are not lists of records.
    """
    if isinstance(data, Mapping):
        values = {key: value for key, value in data.items() if key != TARGET}
        target = import_target(f"data.{TARGET}", data.get(TARGET) or MRCData)
        data = target(**collect_further_keys(target, values))
    loaded = data.load()
    sources = loaded if isinstance(loaded, list) else [loaded]
    for source in sources:
        for part in source if isinstance(source, tuple) and len(source) == 2 else (None,):
            first = part[0] if isinstance(part, Sequence) and part else None
            if not isinstance(first, Mapping) or any(key not in first for key in _RECORD_KEYS):
                raise InputError(
                    f"`{type(data).__name__}.load` returned {str(source)[:80]}; it has to return (train, validation), "
                    f"two lists of records with {', '.join(_RECORD_KEYS)}, or a list of such pairs."
                )
    return [Source(*source) for source in sources]


def load_examples(data: Mapping[str, Any]) -> Source:
    """Return the examples of all sources as one source; for ``data`` and the errors see :func:`load_sources`."""
    return pool(load_sources(data))


def pool(sources: Sequence[Source]) -> Source:
    """Return the examples of all sources as one source."""
    return Source(*([example for part in parts for example in part] for parts in zip(*sources, strict=True)))


@data_only
@dataclass(kw_only=True)
class EncoderModel:
    """The group ``model`` of extractive answers: a pretrained encoder, or a small BERT trained from scratch."""

    name_or_path: str | None = None
    """A local folder or a hub name: start from that model and its tokenizer, instead of a new small BERT."""
    head: str | None = None
    """span, extractive, extractive_with_confidence or beam_search; null: the saved head, else span."""
    teacher: str | None = None
    """Folder or hub name of a trained model with the same tokenizer, from which this one learns."""
    distillation_loss: str | None = None
    """How the scores of the two models are compared."""
    distillation_temperature: float | None = None
    """Temperature of the scores of both models."""
    distillation_weight: float | None = None
    """Weight of the loss against the teacher."""
    attn_implementation: str | None = None
    """How attention is computed, by transformers' names, such as eager or sdpa; null: the model's own choice."""
    config: Mapping[str, Any] = further_keys(partial(SMALL_BERT.settings, open_fields=["max_position_embeddings"]))
    """Field of BertConfig, of a new small BERT."""

    def load(self, texts: Iterable[str], preprocess: "WindowPreprocessing") -> tuple[Any, Any]:
        """Return model and tokenizer, new ones for ``preprocess.max_seq_length`` and ``preprocess.vocab_size``.

        Raises:
            InputError: If the model cannot be loaded, or does not take sequences of ``preprocess.max_seq_length``.
        """
        length = preprocess.max_seq_length
        if self.name_or_path is not None:
            check_unshaped(self.config, self.name_or_path, SMALL_BERT.kind)
            reader = load_reader(self.name_or_path, self.head)
        else:
            head = self.head or PLAIN_HEAD
            size = preprocess.vocab_size
            reader = new_reader(texts, vocab_size=size, max_length=length, model=self.config, head=head)
        check_window("preprocess.max_seq_length", length, reader.max_length)
        set_attention(reader.model, self.attn_implementation)
        return reader.model, reader.tokenizer


@data_only
@dataclass(kw_only=True)
class EncoderDecoderModel:
    """The group ``model`` of generated answers: a pretrained encoder-decoder, or a small T5 trained from scratch."""

    name_or_path: str | None = None
    """A local folder or a hub name: start from that model and its tokenizer, instead of a new small T5."""
    attn_implementation: str | None = None
    """How attention is computed, by transformers' names, such as eager or sdpa; null: the model's own choice."""
    config: Mapping[str, Any] = further_keys(SMALL_T5.settings)
    """Field of T5Config, of a new small T5."""

    def load(self, texts: Iterable[str], preprocess: "GenerativePreprocessing") -> tuple[Any, Any]:
        """Return model and tokenizer as :meth:`EncoderModel.load` does; ``preprocess`` has ``num_passages``."""
        reads_passages = preprocess.num_passages is not None
        if self.name_or_path is not None:
            check_unshaped(self.config, self.name_or_path, SMALL_T5.kind)
            made = load_generator(self.name_or_path, fusion_in_decoder=reads_passages)
        else:
            size = preprocess.vocab_size
            made = new_generator(texts, vocab_size=size, model=self.config, fusion_in_decoder=reads_passages)
        set_attention(made.model, self.attn_implementation)
        return made.model, made.tokenizer


@data_only
@dataclass(kw_only=True)
class WindowPreprocessing:
    """The group ``preprocess`` of extractive answers, which reads a long passage in overlapping windows."""

    max_seq_length: int = setting(192, least=1)
    """Tokens of a window, question and passage together."""
    doc_stride: int = setting(64, least=0)
    """Tokens that two neighbouring windows share."""
    max_question_length: int | None = setting(None, least=1)
    """Longer questions are cut to about this many tokens."""
    max_q_char_len: int | None = setting(None, least=1)
    """Longer questions are cut to this many characters."""
    max_contexts: int | None = setting(None, least=1)
    """Number of passages of a question to read; null: all."""
    negative_sampling_prob_when_has_answer: float = setting(1.0, least=0)
    """Share of the windows without an answer to train on, of questions that have an answer."""
    negative_sampling_prob_when_no_answer: float = setting(1.0, least=0)
    """Share of the windows to train on, of questions without an answer."""
    subsampling_seed: int = setting(0, least=0)
    """Seed of the choice of windows to train on."""
    compat_label_bug: bool = False
    """Reproduce how transformers' example labels an answer in the last token of a window."""
    packing: bool = False
    """Put the features of a batch into one row without padding."""
    vocab_size: int = setting(1600, least=1)
    """Pieces of the tokenizer that is trained on the corpus."""
    cache_dir: str | None = None
    """Folder to store features in, for sets larger than memory and for reuse by other processes and runs."""

    def trainer_parts(
        self, sources: Sequence[Source], model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """Return features, examples and collator as arguments of a trainer; lists if there are several sources.

        Raises:
            InputError: If a setting does not fit the model or the tokenizer.
        """
        modules = [module for module in (model, getattr(model, "task_head", None)) if module is not None]
        target_types = any("target_type" in inspect.signature(module.forward).parameters for module in modules)
        # Heads that return nothing but a loss for labelled rows could not be evaluated on them.
        labels = not gives_loss_alone(model)
        row_length = row_length_in_training(model)
        trains = any(len(source.train) for source in sources)
        if trains and row_length not in (None, self.max_seq_length):
            raise InputError(
                f"`preprocess.max_seq_length={self.max_seq_length}` is not the length that a {type(model).__name__} "
                f"with `axial_pos_shape={tuple(model.config.axial_pos_shape)}` can be trained on; set it to "
                f"{row_length}, or train with `axial_pos_embds=False` in the configuration of the model."
            )
        with naming(PREPROCESS_KEYS):
            # Subclasses override the method, of which most have no such parameter.
            pads = {"pad_to_max_length": True} if trains and row_length is not None else {}
            featurizer = self.featurizer(tokenizer, target_types=target_types, **pads)
            train = [featurizer.train_features(source.train) for source in sources]
            evaluation = [featurizer.eval_features(source.validation, labels=labels) for source in sources]
            # Packing prepares the model too.
            collator = enable_packing(model, tokenizer, self.max_seq_length) if self.packing else None
        examples = [source.validation for source in sources]
        parts: dict[str, Any] = {"train_dataset": train, "eval_dataset": evaluation, "eval_examples": examples}
        if len(sources) == 1:
            parts = {name: part[0] for name, part in parts.items()}
        return {**parts, "data_collator": head_collator(head_of(model), tokenizer, collator)}

    def featurizer(
        self, tokenizer: PreTrainedTokenizerFast, *, target_types: bool = False, pad_to_max_length: bool = False
    ) -> Featurizer:
        """Return the featurizer of these settings; ``target_types`` if the head classifies the kind of answer."""
        probabilities = self.negative_sampling_prob_when_has_answer, self.negative_sampling_prob_when_no_answer
        subsampling = Subsampling(*probabilities, self.subsampling_seed)
        more = {"target_types": target_types, "pad_to_max_length": pad_to_max_length}
        return window_featurizer(tokenizer, self, subsampling=subsampling, **more)


PREPROCESS_KEYS = {field.name: f"preprocess.{field.name}" for field in fields(WindowPreprocessing)}
"""The settings of the command line by the names of the featurizer's arguments."""


@data_only
@dataclass(kw_only=True)
class GenerativePreprocessing:
    """The group ``preprocess`` of generated answers: question and passage in one string, the answer in another."""

    max_source_length: int = setting(224, least=1)
    """Tokens of question and passage together."""
    max_target_length: int = setting(24, least=1)
    """Tokens of the answer."""
    num_passages: int | None = setting(None, least=1)
    """Fusion-in-decoder: encode this many passages separately; null: read one string."""
    vocab_size: int = setting(2000, least=1)
    """Pieces of the tokenizer that is trained on the corpus."""

    def trainer_parts(
        self, sources: Sequence[Source], model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
    ) -> dict[str, Any]:
        """Return features, examples and collator of all sources together, as arguments of a trainer."""
        train, validation = pool(sources)
        featurizer = GenerativeFeaturizer(tokenizer, self.max_source_length, self.max_target_length, self.num_passages)
        collator_class = DataCollatorForSeq2Seq if self.num_passages is None else FiDDataCollator
        return {
            "train_dataset": featurizer.train_features(train),
            "eval_dataset": featurizer.eval_features(validation),
            "eval_examples": validation,
            "data_collator": collator_class(tokenizer, model),
        }


@data_only
@dataclass(kw_only=True)
class SpanAnswers:
    """The group ``postprocess`` of extractive answers: from the scores of tokens to one answer for each question."""

    gives_spans: ClassVar[bool] = True

    n_best_size: int = setting(20, least=1)
    """Candidates kept."""
    max_answer_length: int = setting(30, least=1)
    """Longest answer, in tokens."""
    null_score_diff_threshold: float | str = 0.0
    """Higher values leave fewer questions unanswered; best: the best value for the evaluation set."""
    mode: Mode = "portico"
    """Whose rules select the answers: portico, hf, primeqa or beam_search."""
    search: SpanSearch = "top"
    """exhaustive: the best of all spans, at several times the cost."""
    scorer_type: str = str(SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF.value)
    """Score by which mode=primeqa ranks spans."""
    calibrate: bool = True
    """Store a calibration with the model, which turns scores into probabilities."""

    def build(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, version_2_with_negative: bool
    ) -> SpanPostProcessing:
        """Return the post-processing; raises an ``InputError`` if the mode cannot read the outputs of the model."""
        options = head_post_processing(head_of(model), asdict(self))
        return SpanPostProcessing(version_2_with_negative=version_2_with_negative, **options)


@data_only
@dataclass(kw_only=True)
class GeneratedAnswers:
    """The group ``postprocess`` of generated answers, which has no settings: the generated tokens are the answer."""

    gives_spans: ClassVar[bool] = False

    def build(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, version_2_with_negative: bool
    ) -> GeneratedAnswerProcessing:
        """Return the post-processing, which decodes the tokens."""
        return GeneratedAnswerProcessing(tokenizer, version_2_with_negative=version_2_with_negative)
