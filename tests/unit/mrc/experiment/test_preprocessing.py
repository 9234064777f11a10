"""The settings of data and preprocess, through a whole run."""

import json
from types import SimpleNamespace

import pytest
from torch import nn
from transformers import DataCollatorWithPadding

from mrc_records import tydi_of_google
from mrc_texts import TOKENIZERS, make_examples
from portico import MRCTrainer, TrainingArguments
from portico.configured_run import RunSettings
from portico.errors import InputError
from portico.mrc import Featurizer
from portico.mrc.experiment.preprocessing import make_collator, make_featurizer
from portico.mrc.experiment.run import run_mrc
from portico.mrc.models.small_bert import build_small_bert, small_bert_config

TOKENIZER = TOKENIZERS["bert"]


def run(folder, preprocess, data):
    settings = RunSettings(
        args={"max_steps": 2, "disable_tqdm": True, "report_to": "none", "use_cpu": True, "save_strategy": "no"},
        model={"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
        data=data,
        preprocess={"max_seq_length": 96, "doc_stride": 32, "vocab_size": 400, **preprocess},
        postprocess={},
        metric={},
        strategy={},
        output_dir=str(folder),
    )
    return run_mrc(settings)


@pytest.mark.parametrize(
    "preprocess", [{"packing": True}, {"negative_sampling_prob_when_no_answer": 0.5, "max_q_char_len": 20}]
)
def test_a_run_packs_and_subsamples(tmp_path, preprocess, capsys):
    metrics = run(tmp_path / "run", preprocess, {"num_train": 32, "num_validation": 24, "seed": 0})
    assert metrics["eval_total"] == 24


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

    settings = {"max_seq_length": 64, "doc_stride": 8}
    for model, typed in ((Typed(), True), (Headed(Typed()), True), (Headed(nn.Identity()), False)):
        featurizer = make_featurizer(SimpleNamespace(tokenizer=TOKENIZER, model=model), settings)
        assert ("target_type" in featurizer.train_features(make_examples(0)).column_names) is typed


def test_packing_is_refused_where_shapes_are_fixed():
    reader = SimpleNamespace(tokenizer=TOKENIZER, model=None)
    assert isinstance(make_collator(reader, {}, fixed_shapes=True), DataCollatorWithPadding)
    with pytest.raises(InputError, match=r"`preprocess\.packing=true` makes batches of varying shapes"):
        make_collator(reader, {"packing": True, "max_seq_length": 64}, fixed_shapes=True)


def test_probabilities_are_checked():
    reader = SimpleNamespace(tokenizer=TOKENIZER, model=nn.Identity())
    with pytest.raises(InputError, match="`negative_sampling_prob_when_has_answer=2` is not a probability"):
        make_featurizer(reader, {"negative_sampling_prob_when_has_answer": 2})


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
