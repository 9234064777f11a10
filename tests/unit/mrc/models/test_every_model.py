"""Every model that transformers registers for question answering trains, is saved and answers."""

from functools import partial

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    AutoConfig,
    PreTrainedTokenizerFast,
)

from portico import TrainingArguments
from portico.errors import InputError
from portico.mrc import Reader
from portico.mrc.config import EncoderModel, MRCData, WindowPreprocessing
from portico.mrc.corpus import generate
from portico.mrc.experiment import MRCExperiment
from portico.mrc.models.loading import load_reader

NAMES = sorted(config.model_type for config in MODEL_FOR_QUESTION_ANSWERING_MAPPING)
NOT_OF_TEXT = {"lxmert", "layoutlmv2"}
CHEAP = ("bert", "gpt2", "llama", "qwen2", "t5", "xlnet")
QUESTIONS = generate(num_train=8, num_validation=4, seed=0)[1]

# ---- Tokenizers, of the kind that the family has ----

WORD_PIECES = ["pad_token", "unk_token", "cls_token", "sep_token", "mask_token"]
TEXTS = [text for one in QUESTIONS for text in (one["question"], one["context"])]


def word_pieces():
    backend = Tokenizer(models.WordPiece(unk_token="[unk_token]"))
    backend.normalizer = normalizers.BertNormalizer()
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [f"[{name}]" for name in WORD_PIECES]
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=300, special_tokens=special))
    pair = "[cls_token] $A [sep_token] $B:1 [sep_token]:1"
    backend.post_processor = processors.TemplateProcessing(
        single="[cls_token] $A [sep_token]", pair=pair, special_tokens=[("[cls_token]", 2), ("[sep_token]", 3)]
    )
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    names = {name: f"[{name}]" for name in WORD_PIECES}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=inputs, **names)


MARKS = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}


def bytes_of(pair, inputs=("input_ids", "attention_mask"), **names):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=[*MARKS], initial_alphabet=alphabet)
    backend.train_from_iterator(TEXTS, trainer)
    if pair:
        backend.post_processor = processors.TemplateProcessing(
            single=pair.partition(" $B")[0], pair=pair, special_tokens=list(MARKS.items())
        )
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_input_names=list(inputs), **names)


TYPES = ("input_ids", "token_type_ids", "attention_mask")
ROBERTA = {"cls_token": "<s>", "bos_token": "<s>", "sep_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}
XLNET = {"cls_token": "<s>", "sep_token": "</s>", "pad_token": "<pad>", "pad_token_type_id": 3}
KINDS = {
    "WordPiece": word_pieces,
    "RoBERTa": partial(bytes_of, "<s> $A </s> </s> $B </s>", **ROBERTA),
    "GPT-2": partial(bytes_of, "", bos_token="</s>", eos_token="</s>", unk_token="</s>"),
    "Llama": partial(bytes_of, "<s> $A <s> $B", bos_token="<s>", eos_token="</s>", padding_side="left"),
    "Qwen": partial(bytes_of, "", eos_token="</s>", pad_token="<pad>", padding_side="left"),
    "T5": partial(bytes_of, "$A </s> $B </s>", eos_token="</s>", pad_token="<pad>"),
    "XLNet": partial(bytes_of, "$A </s> $B:1 </s>:1 <s>:2", TYPES, padding_side="left", **XLNET),
}
FAMILIES = {
    "RoBERTa": "bart bigbird_pegasus camembert data2vec-text ibert jina_embeddings_v3 layoutlmv3 led longformer "
    "markuplm mbart modernbert mra mvp roberta roberta-prelayernorm ultrabert xlm-roberta xlm-roberta-xl xmod yoso",
    "GPT-2": "exaone4 falcon gpt2 gpt_neo gpt_neox gptj mpt opt",
    "Llama": "arcee bloom diffllama llama minimax ministral ministral3 mistral mixtral nemotron seed_oss smollm3",
    "Qwen": "qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next",
    "T5": "mt5 reformer t5 umt5",
    "XLNet": "xlnet",
}
KIND_OF = {name: kind for kind, names in FAMILIES.items() for name in names.split()}

# ---- Configurations ----

SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "emb_dim", "n_embd", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_heads", "n_head", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "hidden_dim", "d_ff", "d_inner", "moe_intermediate_size"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("d_kv", "d_head", "head_dim", "linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("num_key_value_heads", "num_local_experts", "num_experts", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_num_key_heads",), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 160),
    **dict.fromkeys(("max_encoder_position_embeddings", "max_decoder_position_embeddings"), 160),
    "num_experts_per_tok": 1,
    "word_embed_proj_dim": 32,
    "decoder_start_token_id": 1,
}
CHANGES = {
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "falcon": {"head_dim": None},
    "funnel": {"block_sizes": [1, 1], "num_hidden_layers": None},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 4},
    "layoutlmv3": {"coordinate_size": 8, "shape_size": 0},
    "led": {"attention_window": 8},
    "lilt": {"channel_shrink_ratio": 4, "hidden_size": 48},
    "longformer": {"attention_window": 8},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "reformer": {
        **{"axial_pos_shape": (8, 16), "axial_pos_embds_dim": (16, 16), "attn_layers": ["local"], "num_buckets": 4}
    },
    "xlnet": {"max_position_embeddings": None, "num_hidden_layers": None},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
}


def save_model(name, folder):
    """Save a small random model with a tokenizer of its family."""
    torch.manual_seed(0)
    tokenizer = KINDS[KIND_OF.get(name, "WordPiece")]()
    config_class = type(AutoConfig.for_model(name))
    known = config_class()
    ids = {key: getattr(tokenizer, key) for key in ("pad_token_id", "bos_token_id", "eos_token_id")}
    given = {**SIZES, **ids, "vocab_size": len(tokenizer) + 8, **CHANGES.get(name, {})}
    fields = {key: value for key, value in given.items() if hasattr(known, key) or key == "decoder_start_token_id"}
    config = config_class(**{key: value for key, value in fields.items() if value is not None or key in ids})
    MODEL_FOR_QUESTION_ANSWERING_MAPPING[config_class](config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


QUIET = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}


def experiment(folder, name_or_path, head=None):
    return MRCExperiment(
        data=MRCData(num_train=8, num_validation=4),
        model=EncoderModel(name_or_path=str(name_or_path), head=head),
        preprocess=WindowPreprocessing(max_seq_length=128, doc_stride=16, max_question_length=40),
        args=partial(
            TrainingArguments, max_steps=3, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
        ),
        output_dir=str(folder),
    )


def trains_and_answers(name, tmp_path, head=None):
    save_model(name, tmp_path / "model")
    metrics = experiment(tmp_path / "run", tmp_path / "model", head).train()
    assert metrics["train_loss"] > 0
    reader = Reader(tmp_path / "run", device="cpu", max_seq_length=128, doc_stride=16, max_question_length=40)
    answers = reader.answer_many(*([one[key] for one in QUESTIONS] for key in ("question", "context")))
    for one, answer in zip(QUESTIONS, answers, strict=True):
        assert answer.text in ("yes", "no") or answer.text in one["context"]


def every(names):
    """Return the names as parameters, most of which are slow."""
    return [name if name in CHEAP else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", every(sorted({*NAMES} - NOT_OF_TEXT)))
@pytest.mark.filterwarnings("ignore")
def test_a_model_trains_is_saved_and_answers(name, tmp_path, capsys):
    trains_and_answers(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["extractive", "extractive_with_confidence", "beam_search"])
@pytest.mark.parametrize("name", ["bart", "bert", "funnel", "gpt2", "llama", "qwen2", "roberta", "t5", "xlnet"])
@pytest.mark.filterwarnings("ignore")
def test_a_model_trains_with_every_head(name, head, tmp_path, capsys):
    trains_and_answers(name, tmp_path, head)


def test_rows_of_another_length_than_the_positions_of_reformer_are_refused(tmp_path):
    save_model("reformer", tmp_path / "model")
    run = experiment(tmp_path / "run", tmp_path / "model")
    run.preprocess.max_seq_length = 120
    with pytest.raises(
        InputError, match=r"max_seq_length=120` .* `axial_pos_shape=\(8, 16\)` can be .*; set it to 128"
    ):
        run.train()


@pytest.mark.parametrize("name", sorted(NOT_OF_TEXT))
def test_a_model_of_more_than_texts_is_refused(name, tmp_path):
    AutoConfig.for_model(name).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=rf"holds a model of {name}, which needs images.*; choose another model"):
        load_reader(str(tmp_path))


def test_models_without_a_limit_take_windows_of_any_length(tmp_path):
    for name, longest in (("xlnet", 10**6), ("t5", 10**6), ("roberta", 158), ("bert", 160)):
        save_model(name, tmp_path / name)
        found = load_reader(str(tmp_path / name)).max_length
        assert found == longest or found > longest == 10**6
