"""Packing changes neither answers nor training."""

import random

import numpy as np
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

from mrc_texts import TOKENIZERS, WORDS, make_examples
from portico import MRCTrainer, TrainingArguments
from portico.errors import InputError
from portico.mrc import Featurizer, SpanPostProcessing, SquadMetrics, packing
from portico.mrc.packing import PackingCollator, enable_packing, pack

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
    config = CONFIGS[name]
    for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout", "qa_dropout"):
        if hasattr(config, field):
            setattr(config, field, dropout)
    return AutoModelForQuestionAnswering.from_config(config, attn_implementation=attention)


@pytest.fixture
def full_rows(monkeypatch):
    """Make rows as full as they can be; models as narrow as these do better with short ones."""
    monkeypatch.setattr(packing, "pack_cheaply", lambda lengths_B, most, hidden_size: pack(lengths_B, most))


@pytest.mark.usefixtures("full_rows")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_loss_and_gradients_equal_those_of_single_features(name, attention):
    model = make_model(name, attention).train()
    collator = enable_packing(model, TOKENIZER, LENGTH)
    features = [one for one in FEATURIZER.train_features(EXAMPLES) if len(one["input_ids"]) < 45][:16]
    assert len(features) == 16
    batch = collator(features)
    assert len(batch["input_ids"]) < 0.7 * len(features)
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


def test_training_and_evaluation_are_unchanged_by_packing(tmp_path, monkeypatch):
    # Features of equal length would keep their rows.
    monkeypatch.setattr(
        packing, "pack_cheaply", lambda lengths_B, max_length, hidden_size: pack(lengths_B, max_length)
    )
    plain, packed = (trainer(tmp_path / str(packs), packs=packs) for packs in (False, True))
    batch = packed.data_collator([packed.train_dataset[f] for f in range(8)])
    assert len(batch["input_ids"]) < 8
    losses = [one.train().training_loss for one in (plain, packed)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    metrics = [one.evaluate() for one in (plain, packed)]
    assert metrics[1]["eval_f1"] == metrics[0]["eval_f1"]
    assert packed.answered.answers.predictions == plain.answered.answers.predictions
    packed.save_model()
    loaded = type(packed.model).from_pretrained(tmp_path / "True")
    ids = torch.tensor([[2, 5, 3, 7, 3]])
    torch.testing.assert_close(loaded.eval()(ids).start_logits, packed.model.eval()(ids).start_logits)


@pytest.mark.parametrize("hidden_size", [32, 768, 10**6])
def test_packed_rows_never_cost_more_than_padded_ones(hidden_size):
    rng = np.random.default_rng(0)
    for _ in range(30):
        lengths_B = rng.integers(3, rng.integers(10, 385), 16)
        row_B, start_B = packing.pack_cheaply(lengths_B, 384, hidden_size)
        num_rows, length = row_B.max() + 1, (start_B + lengths_B).max()
        assert num_rows * length <= 16 * lengths_B.max()
    equal_B = np.full(16, 60)
    assert sorted(packing.pack_cheaply(equal_B, 384, hidden_size)[0]) == list(range(16))
    long_and_short_B = np.array([380, *[90] * 15])
    assert packing.pack_cheaply(long_and_short_B, 384, hidden_size)[0].max() + 1 <= 5
    assert packing.pack_cheaply(np.array([400, 9]), 384, hidden_size)[0].max() + 1 <= 2


def test_every_feature_fits_into_its_row():
    lengths_B = np.random.default_rng(0).integers(3, 65, 200)
    row_B, start_B = pack(lengths_B, 64)
    num_rows = row_B.max() + 1
    taken = np.zeros((num_rows, 64), int)
    for row, start, length in zip(row_B, start_B, lengths_B, strict=True):
        taken[row, start : start + length] += 1
    assert taken.max() == 1
    assert (start_B + lengths_B).max() <= 64
    assert num_rows <= 1.25 * lengths_B.sum() / 64
    assert sorted(pack(np.array([70, 3]), 64)[0]) == [0, 1]


def test_padding_of_features_is_removed():
    padded = Featurizer(TOKENIZER, max_seq_length=LENGTH, doc_stride=8, pad_to_max_length=True)
    collator = PackingCollator(TOKENIZER, LENGTH)
    batches = [collator(list(one.train_features(EXAMPLES[:3]))) for one in (padded, FEATURIZER)]
    assert all(torch.equal(batches[0][name], batches[1][name]) for name in batches[1])


def test_models_without_block_attention_are_refused():
    local = ModernBertConfig(**{**SIZES, "local_attention": 8, "cls_token_id": 2, "sep_token_id": 3})
    deberta = DebertaV2Config(**SIZES)
    for config in (local, deberta):
        model = AutoModelForQuestionAnswering.from_config(config, attn_implementation="eager")
        with pytest.raises(InputError, match="gives packed features other logits than single features"):
            enable_packing(model, TOKENIZER, LENGTH)


def test_an_unsupported_attention_is_refused():
    model = make_model()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(InputError, match="attn_implementation='flash_attention_2' does not support"):
        enable_packing(model, TOKENIZER, LENGTH)
