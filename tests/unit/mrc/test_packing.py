"""Packing changes neither answers nor training."""

import random
from copy import deepcopy

import pytest
import torch
from transformers import (
    AutoModelForQuestionAnswering,
    BertConfig,
    DataCollatorWithPadding,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ModernBertConfig,
    RobertaConfig,
)

from mrc_data import TOKENIZERS, WORDS, make_examples
from portico import MRCTrainer, TrainingArguments
from portico.errors import InputError
from portico.mrc import Featurizer, SpanPostProcessing, SquadMetrics, packing
from portico.mrc.collators import PackingCollator, batch_by_columns
from portico.mrc.packing import enable_packing

TOKENIZER = TOKENIZERS["bert"]
LENGTH = 64
SIZES = {
    "vocab_size": 120,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
DISTIL = {"vocab_size": 120, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "max_position_embeddings": 80}
CONFIGS = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**{**SIZES, "type_vocab_size": 2}),
    "distilbert": DistilBertConfig(**DISTIL),
    "electra": ElectraConfig(**SIZES, embedding_size=32),
}
EXAMPLES = make_examples(0)
FEATURIZER = Featurizer(TOKENIZER, max_seq_length=LENGTH, doc_stride=8)


def make_model(name="bert", attention="sdpa", dropout=0.0):
    torch.manual_seed(0)
    config = deepcopy(CONFIGS[name])
    for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "qa_dropout"):
        if hasattr(config, field):
            setattr(config, field, dropout)
    return AutoModelForQuestionAnswering.from_config(config, attn_implementation=attention)


@pytest.fixture
def packing_all(monkeypatch):
    """Pack batches of any padding, though the models of these tests are too small to gain."""
    monkeypatch.setattr(PackingCollator, "worthwhile_padding", -1)
    monkeypatch.setattr(PackingCollator, "worthwhile_work", -1)


@pytest.mark.parametrize("packs", [True, False])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_loss_and_gradients_equal_those_of_single_features(name, packs, packing_all, monkeypatch):
    if not packs:
        monkeypatch.setattr(PackingCollator, "worthwhile_padding", 1)
    model = make_model(name).train()
    collator = enable_packing(model, TOKENIZER, LENGTH)
    features = [one for one in FEATURIZER.train_features(EXAMPLES) if len(one["input_ids"]) < 45][:16]
    assert len(features) == 16
    batch = collator(features)
    lengths = [len(one["input_ids"]) for one in features]
    assert batch["input_ids"].shape == ((1, sum(lengths)) if packs else (16, max(lengths)))
    packed = model(**batch)
    packed.loss.backward()
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    model.zero_grad()
    losses = []
    for number, feature in enumerate(features):
        alone = model(**{name: torch.tensor([value]) for name, value in feature.items()})
        for logits in ("start_logits", "end_logits"):
            length = len(feature["input_ids"])
            torch.testing.assert_close(packed[logits][number, :length], alone[logits][0], atol=1e-5, rtol=1e-4)
            assert (packed[logits][number, length:] == -10000).all()
        losses.append(alone.loss)
    loss = torch.stack(losses).mean()
    torch.testing.assert_close(packed.loss, loss, atol=1e-5, rtol=1e-5)
    loss.backward()
    again = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    for packed_gradient, gradient in zip(gradients, again, strict=True):
        torch.testing.assert_close(packed_gradient, gradient, atol=1e-5, rtol=1e-3)


def trainer(folder, *, packs):
    sample = random.Random(0).sample
    # Batches of features of equal length have no padding, so their loss is the same with and without packing.
    alike = [{**EXAMPLES[1], "context": " ".join(sample(WORDS[:8], 8)), "id": str(n)} for n in range(64)]
    for example in alike:
        example["answers"] = {"text": ["river"], "answer_start": [example["context"].index("river")]}
    model = make_model()
    collator = enable_packing(model, TOKENIZER, LENGTH) if packs else DataCollatorWithPadding(TOKENIZER)
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_steps=5,
        learning_rate=1e-3,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        save_strategy="no",
    )
    return MRCTrainer(
        model=model,
        args=arguments,
        train_dataset=FEATURIZER.train_features(alike),
        eval_dataset=FEATURIZER.eval_features(EXAMPLES, labels=True),
        eval_examples=EXAMPLES,
        processing_class=TOKENIZER,
        data_collator=collator,
        post_process_function=SpanPostProcessing(version_2_with_negative=True),
        compute_metrics=SquadMetrics(True),
    )


def test_batches_with_hardly_any_padding_are_not_packed():
    def rows(lengths, side="right"):
        features = [{"input_ids": [5] * length, "attention_mask": [1] * length} for length in lengths]
        tokenizer = deepcopy(TOKENIZER)
        tokenizer.padding_side = side
        return len(PackingCollator(DataCollatorWithPadding(tokenizer))(features)["input_ids"])

    assert [rows([20, 19]), rows([20, 12]), rows([20, 20])] == [2, 1, 2]
    assert [rows([20, 19], "left"), rows([20, 12], "left"), rows([20, 20], "left")] == [2, 1, 2]


def test_a_batch_is_packed_if_that_saves_more_work_than_a_call_for_each_length_takes():
    def is_packed(lengths, width):
        features = [{"input_ids": [5] * length, "attention_mask": [1] * length} for length in lengths]
        return "feature_starts" in PackingCollator(DataCollatorWithPadding(TOKENIZER), width)(features)

    # 90 tokens are saved by two lengths, or by three.
    two, three = [100, 10], [100, 50, 60]
    assert [is_packed(two, width) for width in (32, 47, 48, 384)] == [False, False, True, True]
    assert [is_packed(three, width) for width in (48, 57, 58)] == [False, False, True]
    assert enable_packing(make_model(), TOKENIZER, LENGTH).width == 32


def test_training_and_evaluation_are_unchanged_by_packing(tmp_path, packing_all):
    plain, packed = (trainer(tmp_path / str(packs), packs=packs) for packs in (False, True))
    batch = packed.data_collator([packed.train_dataset[f] for f in range(8)])
    assert len(batch["input_ids"]) == 1
    losses = [one.train().training_loss for one in (plain, packed)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    metrics = [one.evaluate() for one in (plain, packed)]
    assert metrics[1]["eval_f1"] == metrics[0]["eval_f1"]
    assert packed.answered.answers.predictions == plain.answered.answers.predictions
    packed.save_model()
    loaded = type(packed.model).from_pretrained(tmp_path / "True")
    assert "packed" not in (tmp_path / "True" / "config.json").read_text()
    ids = torch.tensor([[2, 5, 3, 7, 3]])
    torch.testing.assert_close(loaded.eval()(ids).start_logits, packed.model.eval()(ids).start_logits)


def test_padding_of_features_is_removed():
    padded = Featurizer(TOKENIZER, max_seq_length=LENGTH, doc_stride=8, pad_to_max_length=True)
    collator = PackingCollator(DataCollatorWithPadding(TOKENIZER))
    batches = [collator(list(one.train_features(EXAMPLES[:3]))) for one in (padded, FEATURIZER)]
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in batches[1])


def test_batches_made_from_columns_are_those_made_from_rows():
    features = FEATURIZER.train_features(EXAMPLES)
    collator = PackingCollator(DataCollatorWithPadding(TOKENIZER))
    columns, by_column = batch_by_columns(features, collator)
    indices = [5, 0, 9, 3]
    made = by_column(columns.__getitems__(indices))
    expected = collator([features[index] for index in indices])
    assert list(made) == list(expected)
    assert all(torch.equal(made[name], expected[name]) for name in made)


def test_features_of_one_length_attend_in_one_call(packing_all, monkeypatch):
    model = make_model()
    collator = enable_packing(model, TOKENIZER, LENGTH)
    calls = []
    attend = packing.scaled_dot_product_attention
    monkeypatch.setattr(
        packing, "scaled_dot_product_attention", lambda *args, **options: calls.append(1) or attend(*args, **options)
    )
    feature = {"input_ids": [2, 7, 9, 3], "attention_mask": [1] * 4}
    longer = {"input_ids": [2, 7, 9, 5, 3], "attention_mask": [1] * 5}
    model(**collator([feature, longer, feature, feature]))
    assert len(calls) == 2 * model.config.num_hidden_layers


@pytest.mark.slow
def test_batches_of_other_lengths_are_not_compiled_again(monkeypatch):
    monkeypatch.setattr(PackingCollator, "worthwhile_work", -1)
    features = list(FEATURIZER.train_features(EXAMPLES))
    model = make_model()
    collator = enable_packing(model, TOKENIZER, LENGTH)
    batches = [collator([features[(7 * i + 3 * j) % len(features)] for j in range(8)]) for i in range(9)]
    num_compiled = []

    def backend(graph, inputs):
        num_compiled.append(number)
        return graph

    compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        for number, batch in enumerate(batches):  # noqa: B007
            torch.testing.assert_close(compiled(**batch).loss, model(**batch).loss)
    # Once for a first shape and once for all others, packed and with hardly any padding.
    assert len({len(batch["input_ids"]) for batch in batches}) == 2
    assert len(set(num_compiled)) <= 4


def test_models_without_block_attention_are_refused():
    config = ModernBertConfig(**{**SIZES, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3})
    model = AutoModelForQuestionAnswering.from_config(config)
    with pytest.raises(InputError, match="gives packed features other logits than single features"):
        enable_packing(model, TOKENIZER, LENGTH)
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("config", [BertConfig(**SIZES), DebertaV2Config(**SIZES)])
def test_an_unsupported_attention_is_refused(config):
    model = AutoModelForQuestionAnswering.from_config(config, attn_implementation="eager")
    with pytest.raises(InputError, match=r"Packing computes attention by sdpa, but .* attn_implementation='eager'"):
        enable_packing(model, TOKENIZER, LENGTH)
