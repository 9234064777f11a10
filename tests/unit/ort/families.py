"""The smallest model of each family, with a batch for it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers as hf
from torch import nn

POSITIONS = {"vocab_size": 50, "max_position_embeddings": 32}
LAYERS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SIZES = {**POSITIONS, **LAYERS}
DECODER = {**SIZES, "num_key_value_heads": 1, "use_cache": False}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "use_cache": False}
DISTIL = {**POSITIONS, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
T5_LAYERS = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
T5 = {"vocab_size": 50, **T5_LAYERS, "use_cache": False, "decoder_start_token_id": 0}
BART_ENCODER = {"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
BART_DECODER = {"decoder_layers": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 32}
BART = {**POSITIONS, "d_model": 16, **BART_ENCODER, **BART_DECODER, "use_cache": False}
VIT = {**LAYERS, "image_size": 8, "patch_size": 4}
DEBERTA = {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}


@dataclass(frozen=True)
class Family:
    make: Callable[..., nn.Module]
    batch: Callable[[int, int], dict[str, torch.Tensor]]


def tokens(rows: int, length: int) -> torch.Tensor:
    return torch.randint(3, 50, (rows, length))


def text(rows: int, length: int) -> dict[str, torch.Tensor]:
    mask = torch.ones(rows, length, dtype=torch.long)
    mask[0, length - 2 :] = 0
    return {"input_ids": tokens(rows, length), "attention_mask": mask}


def answers(rows: int, length: int) -> dict[str, torch.Tensor]:
    ends = {name: torch.randint(0, length, (rows,)) for name in ("start_positions", "end_positions")}
    return {**text(rows, length), **ends}


def classes(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {**text(rows, length), "labels": torch.randint(0, 2, (rows,))}


def tags(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {**text(rows, length), "labels": torch.randint(0, 2, (rows, length))}


def language(rows: int, length: int) -> dict[str, torch.Tensor]:
    batch = text(rows, length)
    labels = batch["input_ids"].clone()
    labels[0, :2] = -100
    return {**batch, "labels": labels}


def translation(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {**text(rows, length), "labels": tokens(rows, length + 2)}


def images(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(rows, 3, 8, 8), "labels": torch.randint(0, 2, (rows,))}


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 2),
        )

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        logits = self.layers(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.GELU(), nn.Dropout(0.2), nn.Linear(16, 2))

    forward = Convolutional.forward


FAMILIES = {
    "bert-qa": Family(lambda **changes: hf.BertForQuestionAnswering(hf.BertConfig(**SIZES | changes)), answers),
    "bert-classification": Family(lambda: hf.BertForSequenceClassification(hf.BertConfig(**SIZES)), classes),
    "bert-mlm": Family(lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)), language),
    "roberta": Family(lambda: hf.RobertaForTokenClassification(hf.RobertaConfig(**SIZES)), tags),
    "distilbert": Family(lambda: hf.DistilBertForQuestionAnswering(hf.DistilBertConfig(**DISTIL)), answers),
    "albert": Family(lambda: hf.AlbertForSequenceClassification(hf.AlbertConfig(embedding_size=8, **SIZES)), classes),
    "electra": Family(lambda: hf.ElectraForQuestionAnswering(hf.ElectraConfig(embedding_size=8, **SIZES)), answers),
    "deberta": Family(lambda: hf.DebertaV2ForQuestionAnswering(hf.DebertaV2Config(**DEBERTA)), answers),
    "mpnet": Family(lambda: hf.MPNetForQuestionAnswering(hf.MPNetConfig(**SIZES)), answers),
    "gpt2": Family(lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)), language),
    "llama": Family(lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**DECODER)), language),
    "qwen2": Family(lambda: hf.Qwen2ForCausalLM(hf.Qwen2Config(**DECODER)), language),
    "t5": Family(lambda: hf.T5ForConditionalGeneration(hf.T5Config(**T5)), translation),
    "bart": Family(lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART)), translation),
    "vit": Family(lambda: hf.ViTForImageClassification(hf.ViTConfig(**VIT)), images),
    "convolutional": Family(Convolutional, images),
    "perceptron": Family(Perceptron, images),
}


def make_model(name: str, attention: str = "sdpa", **changes: object) -> nn.Module:
    """Return a model of seeded weights, in training mode, with dropout where the family has it by default.

    Some families take changes of their configuration.
    """
    torch.manual_seed(0)
    model = FAMILIES[name].make(**changes).train()
    if isinstance(model, hf.PreTrainedModel) and model._supports_sdpa:
        model.set_attn_implementation(attention)
    return model


def make_batch(name: str, rows: int, length: int) -> dict[str, torch.Tensor]:
    """Return a batch that depends on its shape alone."""
    torch.manual_seed(rows)
    return (FAMILIES | MORE_FAMILIES)[name].batch(rows, length)


OPT = {"ffn_dim": 32, "word_embed_proj_dim": 16, "max_position_embeddings": 32}
SPOKEN = {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 32, "suppress_tokens": None}
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
WHISPER = {**BART, **SPOKEN, **SPECIAL}
GROUPS = {f"{part}_groups": 2 for part in ("q", "k", "v", "intermediate", "output")}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1]}
PATCHES = {"sr_ratios": [2, 1], "patch_sizes": [3, 3], "strides": [2, 2], "mlp_ratios": [2, 2]}
SEGFORMER = {"num_encoder_blocks": 2, "num_attention_heads": [1, 2], "drop_path_rate": 0.0, **PATCHES, **STAGES}


def boxed(rows: int, length: int) -> dict[str, torch.Tensor]:
    corners = torch.randint(0, 10, (rows, length, 2))
    return {**classes(rows, length), "bbox": torch.cat([corners, corners + 5], -1)}


def speech(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(rows, 8, 20), "labels": tokens(rows, length)}


def captions(rows: int, length: int) -> dict[str, Any]:
    return {**text(rows, length), "pixel_values": torch.randn(rows, 3, 8, 8), "return_loss": True}


def larger_images(rows: int, length: int) -> dict[str, torch.Tensor]:
    return {**images(rows, length), "pixel_values": torch.randn(rows, 3, 32, 32)}


def clip() -> hf.CLIPModel:
    return hf.CLIPModel(hf.CLIPConfig(text_config={**SIZES, "eos_token_id": 2}, vision_config=VIT, projection_dim=8))


def layers(number: str, heads: str, width: str = "hidden_size") -> dict[str, Any]:
    """Return the sizes of a decoder whose names are its own."""
    return {"vocab_size": 50, width: 16, number: 2, heads: 2, "use_cache": False}


_ENCODERS = {
    "bigbird": (hf.BigBirdForQuestionAnswering, hf.BigBirdConfig, {"attention_type": "original_full"}),
    "camembert": (hf.CamembertForQuestionAnswering, hf.CamembertConfig, {}),
    "convbert": (
        hf.ConvBertForQuestionAnswering,
        hf.ConvBertConfig,
        {"embedding_size": 16, "head_ratio": 1, "conv_kernel_size": 3},
    ),
    "ernie": (hf.ErnieForQuestionAnswering, hf.ErnieConfig, {}),
    "megatron-bert": (hf.MegatronBertForQuestionAnswering, hf.MegatronBertConfig, {}),
    "mobilebert": (
        hf.MobileBertForQuestionAnswering,
        hf.MobileBertConfig,
        {"intra_bottleneck_size": 16, "embedding_size": 16},
    ),
    "rembert": (
        hf.RemBertForQuestionAnswering,
        hf.RemBertConfig,
        {"input_embedding_size": 8, "output_embedding_size": 8},
    ),
    "roformer": (hf.RoFormerForQuestionAnswering, hf.RoFormerConfig, {"embedding_size": 16}),
    "splinter": (hf.SplinterForQuestionAnswering, hf.SplinterConfig, {}),
    "squeezebert": (hf.SqueezeBertForQuestionAnswering, hf.SqueezeBertConfig, {"embedding_size": 16, **GROUPS}),
}

_CLASSIFIERS = {
    "modernbert": (
        hf.ModernBertForSequenceClassification,
        hf.ModernBertConfig,
        {"pad_token_id": 0, "local_attention": 4, "global_attn_every_n_layers": 2},
    ),
    "xlm-roberta": (hf.XLMRobertaForSequenceClassification, hf.XLMRobertaConfig, {}),
}

_DECODERS = {
    "cohere": (hf.CohereForCausalLM, hf.CohereConfig, {}),
    "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig, {"head_dim": 8}),
    "gemma2": (hf.Gemma2ForCausalLM, hf.Gemma2Config, {"head_dim": 8, "sliding_window": 4}),
    "granite": (hf.GraniteForCausalLM, hf.GraniteConfig, {}),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig, {"sliding_window": 4}),
    "olmo": (hf.OlmoForCausalLM, hf.OlmoConfig, {}),
    "phi": (hf.PhiForCausalLM, hf.PhiConfig, {"num_key_value_heads": 2}),
    "phi3": (hf.Phi3ForCausalLM, hf.Phi3Config, {"pad_token_id": 0}),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, {"head_dim": 8}),
    "stablelm": (hf.StableLmForCausalLM, hf.StableLmConfig, {}),
}

_TRANSLATORS = {
    "blenderbot": (hf.BlenderbotForConditionalGeneration, hf.BlenderbotConfig, {}),
    "marian": (hf.MarianMTModel, hf.MarianConfig, {"pad_token_id": 1, "decoder_start_token_id": 1}),
    "mbart": (hf.MBartForConditionalGeneration, hf.MBartConfig, {}),
    "pegasus": (hf.PegasusForConditionalGeneration, hf.PegasusConfig, {}),
}


def _families(table: dict[str, Any], sizes: dict[str, Any], batch: Any) -> dict[str, Family]:
    return {name: _family(*row[:2], {**sizes, **row[2]}, batch) for name, row in table.items()}


def _family(model: Any, config: Any, sizes: dict[str, Any], batch: Any) -> Family:
    return Family(lambda **others: model(config(**{**sizes, **others})), batch)


GPT_NEO = {**layers("num_layers", "num_heads"), "attention_types": [[["global", "local"], 1]], "window_size": 4}
RESNET = {"embedding_size": 8, "layer_type": "basic", **STAGES}
CONVNEXT = {"num_stages": 2, "patch_size": 2, **STAGES}
LAYOUT = {**SIZES, "max_2d_position_embeddings": 64}
XLNET = {"vocab_size": 50, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32}
EXPERTS = {**DECODER, "num_experts_per_tok": 2}
SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2], "window_size": 4}

MORE_FAMILIES = {
    "deberta-v1": _family(hf.DebertaForQuestionAnswering, hf.DebertaConfig, DEBERTA, answers),
    "mixtral": _family(hf.MixtralForCausalLM, hf.MixtralConfig, {**EXPERTS, "num_local_experts": 4}, language),
    "qwen3-moe": _family(
        hf.Qwen3MoeForCausalLM,
        hf.Qwen3MoeConfig,
        {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 16, "head_dim": 8},
        language,
    ),
    "swin": _family(hf.SwinForImageClassification, hf.SwinConfig, {**SWIN, "drop_path_rate": 0.0}, larger_images),
    **_families(_ENCODERS, SIZES, answers),
    **_families(_CLASSIFIERS, SIZES, classes),
    **_families(_DECODERS, DECODER, language),
    **_families(_TRANSLATORS, BART, translation),
    "layoutlm": _family(hf.LayoutLMForSequenceClassification, hf.LayoutLMConfig, LAYOUT, boxed),
    "xlnet": _family(hf.XLNetForSequenceClassification, hf.XLNetConfig, XLNET, classes),
    "bloom": _family(hf.BloomForCausalLM, hf.BloomConfig, layers("n_layer", "n_head"), language),
    "falcon": _family(
        hf.FalconForCausalLM, hf.FalconConfig, layers("num_hidden_layers", "num_attention_heads"), language
    ),
    "gpt_neo": _family(hf.GPTNeoForCausalLM, hf.GPTNeoConfig, GPT_NEO, language),
    "gpt_neox": _family(hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, {**SIZES, "use_cache": False}, language),
    "gptj": _family(hf.GPTJForCausalLM, hf.GPTJConfig, {**GPT2, "rotary_dim": 4}, language),
    "mpt": _family(hf.MptForCausalLM, hf.MptConfig, layers("n_layers", "n_heads", "d_model"), language),
    "opt": _family(
        hf.OPTForCausalLM, hf.OPTConfig, {**layers("num_hidden_layers", "num_attention_heads"), **OPT}, language
    ),
    "mt5": _family(hf.MT5ForConditionalGeneration, hf.MT5Config, T5, translation),
    "whisper": _family(hf.WhisperForConditionalGeneration, hf.WhisperConfig, WHISPER, speech),
    "beit": _family(hf.BeitForImageClassification, hf.BeitConfig, {**VIT, "drop_path_rate": 0.0}, images),
    "deit": _family(hf.DeiTForImageClassification, hf.DeiTConfig, VIT, images),
    "clip": Family(clip, captions),
    "convnext": _family(hf.ConvNextForImageClassification, hf.ConvNextConfig, CONVNEXT, larger_images),
    "resnet": _family(hf.ResNetForImageClassification, hf.ResNetConfig, RESNET, larger_images),
    "segformer": _family(hf.SegformerForImageClassification, hf.SegformerConfig, SEGFORMER, larger_images),
}
