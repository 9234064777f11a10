import json

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, BartConfig, BertConfig, T5Config

from portico import InputError
from portico.mrc import EXTRACTIVE_HEAD, FID_HEAD, FiDModelForDownstreamTasks

CONFIGS = {
    "Bart": BartConfig(
        vocab_size=40,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=64,
        dropout=0,
    ),
    "T5": T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, dropout_rate=0
    ),
}


@pytest.fixture(params=CONFIGS)
def model(request):
    torch.manual_seed(0)
    model = FiDModelForDownstreamTasks.from_config(CONFIGS[request.param], task_heads=FID_HEAD)
    model.set_task_head("fid_head")
    return model.eval()


def passages(num_questions=2, num_passages=3, length=7):
    tokens = torch.randint(5, 40, (num_questions, num_passages, length), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(tokens)
    mask[0, 1, 4:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


LABELS = torch.tensor([[7, 8, 9, 2], [11, 12, 2, -100]])


def test_with_one_passage_it_equals_the_plain_model(model, tmp_path):
    model.save_pretrained(tmp_path)
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert not isinstance(plain, FiDModelForDownstreamTasks)
    one = {name: value[:, :1] for name, value in passages().items()}
    flat = {name: value[:, 0] for name, value in one.items()}
    torch.testing.assert_close(model(**one, labels=LABELS).logits, plain(**flat, labels=LABELS).logits)
    torch.testing.assert_close(model(**flat, labels=LABELS).logits, plain(**flat, labels=LABELS).logits)


def test_outputs_are_a_tuple_where_that_is_asked_for(model):
    expected = model(**passages(), labels=LABELS)
    outputs = model(**passages(), labels=LABELS, return_dict=False)
    assert type(outputs) is tuple
    assert outputs[0] == expected.loss
    assert torch.equal(outputs[1], expected.logits)


# T5 needs decoder tokens or labels, with or without passages.
@pytest.mark.parametrize("model", ["Bart"], indirect=True)
def test_without_labels_bart_decodes_from_its_input(model, tmp_path):
    model.save_pretrained(tmp_path)
    plain = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    one = {name: value[:, :1] for name, value in passages().items()}
    flat = {name: value[:, 0] for name, value in one.items()}
    torch.testing.assert_close(model(**one).logits, plain(**flat).logits)
    assert model(**passages()).logits.shape == (2, 3 * 7, 40)


def test_passages_are_encoded_separately_and_decoded_together(model):
    inputs = passages()
    encoder = model.get_encoder()
    apart = [
        encoder(input_ids=inputs["input_ids"][:, n], attention_mask=inputs["attention_mask"][:, n]).last_hidden_state
        for n in range(3)
    ]
    encoded = model.encode_passages(**{f"{name}_BNL": value for name, value in inputs.items()}).last_hidden_state
    torch.testing.assert_close(encoded, torch.cat(apart, dim=1))
    losses = [model(**inputs, labels=LABELS).loss]
    changed = inputs["input_ids"].clone()
    changed[:, 2] = 6
    losses.append(model(**{**inputs, "input_ids": changed}, labels=LABELS).loss)
    assert losses[0] != losses[1]


def test_padding_and_empty_passages_are_ignored(model):
    inputs = passages()
    other = inputs["input_ids"].clone()
    other[0, 1, 4:] = 6
    expected = model(**inputs, labels=LABELS).logits
    torch.testing.assert_close(model(**{**inputs, "input_ids": other}, labels=LABELS).logits, expected)
    longer = {name: torch.cat([value, torch.zeros_like(value[:, :1])], dim=1) for name, value in inputs.items()}
    torch.testing.assert_close(model(**longer, labels=LABELS).logits, expected)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_batched_generation_equals_single_generation(model, num_beams):
    inputs = passages()
    options = {"max_length": 8, "num_beams": num_beams}
    together = model.generate(**inputs, **options)
    for number in range(2):
        alone = model.generate(**{name: value[number : number + 1] for name, value in inputs.items()}, **options)
        assert together[number, : alone.shape[1]].tolist() == alone[0].tolist()
    unmasked = {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])}
    assert torch.equal(model.generate(inputs["input_ids"], **options), model.generate(**unmasked, **options))


def test_checkpoints_have_the_plain_names(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = FiDModelForDownstreamTasks.from_pretrained(tmp_path)
    assert type(again).__name__ == type(model).__name__
    weights = model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())
    config = json.loads((tmp_path / "config.json").read_text())
    assert "task_heads" not in config


def test_invalid_use_is_refused(model):
    with pytest.raises(TypeError, match="has no encoder; make a model with `from_config"):
        FiDModelForDownstreamTasks(CONFIGS["T5"])
    with pytest.raises(InputError, match="no encoder-decoder for a `BertConfig`"):
        FiDModelForDownstreamTasks.from_config(BertConfig())
    with pytest.raises(InputError, match=r"got the heads \['qa_head'\]; give `FID_HEAD`"):
        FiDModelForDownstreamTasks.from_config(CONFIGS["T5"], task_heads=EXTRACTIVE_HEAD)
    with pytest.raises(KeyError, match="no head 'qa_head'; set 'fid_head'"):
        model.set_task_head("qa_head")
    if isinstance(model.config, T5Config):
        with pytest.raises(
            InputError, match="got neither `labels` nor `decoder_input_ids`; give one of them, or call"
        ):
            model(**passages())
        with pytest.raises(ValueError, match=r"^(?!.*got neither)"):  # the plain model's own
            model(labels=LABELS)


def test_a_derived_class_accepts_the_head():
    made = FiDModelForDownstreamTasks.model_class_from_config(CONFIGS["T5"])(CONFIGS["T5"], task_heads=FID_HEAD)
    assert type(made).__name__ == "T5FiDModelForDownstreamTasks"
    with pytest.raises(InputError, match="has one head, its language model head"):
        type(made)(CONFIGS["T5"], EXTRACTIVE_HEAD)
