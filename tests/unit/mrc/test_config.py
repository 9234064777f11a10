"""The groups of a reading comprehension experiment."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
from torch import nn
from transformers import DataCollatorWithPadding, PreTrainedModel

from mrc_data import TOKENIZERS, make_examples, tydi_of_google
from portico import MRCTrainer, TrainingArguments
from portico.errors import InputError
from portico.ipu.mrc import IPUMRCExperiment
from portico.mrc import Featurizer
from portico.mrc.config import (
    EncoderDecoderModel,
    EncoderModel,
    MRCData,
    Source,
    WindowPreprocessing,
    load_examples,
    load_sources,
)
from portico.mrc.experiment import MRCExperiment
from portico.mrc.models.small_bert import build_small_bert, small_bert_config

TOKENIZER = TOKENIZERS["bert"]


ARGS = {"max_steps": 2, "disable_tqdm": True, "report_to": "none", "use_cpu": True, "save_strategy": "no"}
SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def run(folder, preprocess, data):
    """Run an experiment made in Python, without a configuration."""
    experiment = MRCExperiment(
        args=partial(TrainingArguments, **ARGS),
        model=EncoderModel(config=SHAPE),
        data=MRCData(**data),
        preprocess=WindowPreprocessing(**{"max_seq_length": 96, "doc_stride": 32, "vocab_size": 400, **preprocess}),
        output_dir=str(folder),
    )
    return experiment.train()


@pytest.mark.parametrize(
    "preprocess", [{"packing": True}, {"negative_sampling_prob_when_no_answer": 0.5, "max_q_char_len": 20}]
)
def test_a_run_packs_and_subsamples(tmp_path, preprocess, capsys):
    metrics = run(tmp_path / "run", preprocess, {"num_train": 32, "num_validation": 24, "seed": 0})
    assert metrics["eval_total"] == 24


# What a model's `load` reads of the preprocessing.
SHORT_INPUTS = SimpleNamespace(max_seq_length=96, vocab_size=200, num_passages=None)


@pytest.mark.parametrize(
    "group",
    [
        EncoderModel(config=SHAPE, attn_implementation="eager"),
        EncoderModel(config=SHAPE, head="extractive", attn_implementation="eager"),
        EncoderDecoderModel(
            config={"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}, attn_implementation="eager"
        ),
    ],
)
def test_attention_is_computed_as_the_model_group_says(group):
    model, _ = group.load(["a text of words"], SHORT_INPUTS)
    assert {part.config._attn_implementation for part in model.modules() if isinstance(part, PreTrainedModel)} == {
        "eager"
    }


def test_an_unknown_attention_is_refused():
    with pytest.raises(InputError, match=r"`model.attn_implementation=sdpaa` cannot .* set it to eager or sdpa"):
        EncoderModel(config=SHAPE, attn_implementation="sdpaa").load(["a text of words"], SHORT_INPUTS)


def test_a_run_reads_documents_with_passages(tmp_path, capsys):
    path = tmp_path / "tydi.jsonl"
    records = [tydi_of_google(example_id=number) for number in range(6)]
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    run(tmp_path / "run", {}, {"train_file": str(path), "validation_file": [str(path)]})
    predictions = json.loads((tmp_path / "run" / "eval_predictions.json").read_text(encoding="utf-8"))
    assert set(predictions) == {"0", "1", "2", "3", "4", "5"}


def test_kinds_of_answers_are_labelled_for_a_head_that_reads_them():
    class Typed(nn.Module):
        def forward(self, input_ids, target_type=None):
            return None

    class Headed(nn.Module):
        def __init__(self, task_head):
            super().__init__()
            self.task_head = task_head

        def forward(self, input_ids, **kwargs):
            return None

    sources = [Source(make_examples(0), make_examples(1))]
    for model, typed in ((Typed(), True), (Headed(Typed()), True), (Headed(nn.Identity()), False)):
        parts = WindowPreprocessing(max_seq_length=64, doc_stride=8).trainer_parts(sources, model, TOKENIZER)
        assert ("target_type" in parts["train_dataset"].column_names) is typed


def test_packing_is_refused_where_shapes_are_fixed(tmp_path):
    preprocess = WindowPreprocessing(packing=True)
    experiment = IPUMRCExperiment(preprocess=preprocess, output_dir=str(tmp_path))
    with pytest.raises(InputError, match=r"`preprocess\.packing=true` makes batches of varying shapes"):
        experiment.train()


RECORD = {"id": "a", "question": "Who?", "context": "Ana.", "answers": {"text": ["Ana"], "answer_start": [0]}}


class OwnData:
    def __init__(self, loaded):
        self.loaded = loaded

    def load(self):
        return self.loaded


def test_data_of_a_users_class_is_a_pair_or_a_list_of_pairs():
    pair = ([RECORD], [RECORD])
    assert load_sources(OwnData(pair)) == [Source(*pair)]
    assert load_sources(OwnData([pair, pair])) == [Source(*pair)] * 2


@pytest.mark.parametrize(
    "loaded", [None, ([RECORD],), ([RECORD], []), ([RECORD], ["Who?"]), ([RECORD], [{"id": "a"}]), [([RECORD], 3)]]
)
def test_data_of_another_form_is_refused(loaded):
    with pytest.raises(InputError, match=r"`OwnData.load` returned .*; it has to return \(train, validation\)"):
        load_sources(OwnData(loaded))


def test_a_question_may_be_given_twice_to_train_on_and_not_to_evaluate(tmp_path):
    files = {}
    for name, records in {"once": [RECORD], "twice": [RECORD, RECORD]}.items():
        files[name] = str(tmp_path / f"{name}.jsonl")
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (found,) = load_sources(MRCData(train_file=files["twice"], validation_file=files["once"]))
    assert (len(found.train), len(found.validation)) == (2, 1)
    with pytest.raises(InputError, match="duplicate id, first used by"):
        load_sources(MRCData(train_file=files["once"], validation_file=files["twice"]))


def test_a_recorded_group_is_loaded_again():
    data = {"_target_": "portico.mrc.config.MRCData", "num_train": 8, "num_validation": 4, "max_eval_samples": 3}
    examples = load_examples(data)
    assert (len(examples.train), len(examples.validation)) == (8, 3)
    two = load_examples({**data, "sources": [{"seed": 1}, {"seed": 2}]})
    assert (len(two.train), len(two.validation)) == (16, 6)


def test_batches_are_grouped_by_length(tmp_path):
    features = Featurizer(TOKENIZER, max_seq_length=64, doc_stride=8).train_features(make_examples(0, num_contexts=40))

    def spread(strategy):
        arguments = TrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=8,
            train_sampling_strategy=strategy,
            report_to="none",
            use_cpu=True,
        )
        model = build_small_bert(small_bert_config(TOKENIZER))
        trainer = MRCTrainer(
            model=model,
            args=arguments,
            train_dataset=features,
            processing_class=TOKENIZER,
            data_collator=DataCollatorWithPadding(TOKENIZER),
        )
        masks = [batch["attention_mask"] for batch in trainer.get_train_dataloader()]
        return sum(int((mask == 0).sum()) for mask in masks)

    assert spread("group_by_length") < 0.3 * spread("random")
