"""Placement of the layers of any transformers model."""

import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

import poptorch_emulator as poptorch
from ipu_trainers import bert_config, ipu_trainer
from models import tiny_t5
from portico.ipu.config import IncompatibleIPUConfigError, IPUConfig
from portico.ipu.pipelining.placement import (
    layer_ipus,
    layer_names,
    place,
    plan_placement,
    remove_placement,
    split_encoder_decoder_ipu_config,
)
from portico.ipu.program import DeviceProgram
from unit.ort.families import BART, DEBERTA, DISTIL, GPT2, SIZES, VIT

TOKENS = torch.arange(1, 9).reshape(1, 8)
TEXT = {"input_ids": TOKENS}
SMALL = {**SIZES, "num_hidden_layers": 4}
SPAN = {"start_positions": torch.tensor([1]), "end_positions": torch.tensor([2])}
CLASS = {"labels": torch.tensor([1])}
SAME = {"labels": TOKENS}
PARITY = {"labels": TOKENS % 2}
# Family: constructor, inputs without labels, labels, number of stages with [1, 1, 1, 1].
FAMILIES = {
    "bert-qa": (lambda: hf.BertForQuestionAnswering(hf.BertConfig(**SMALL)), TEXT, SPAN, 4),
    "bert-classes": (lambda: hf.BertForSequenceClassification(hf.BertConfig(**SMALL)), TEXT, CLASS, 4),
    "bert-mlm": (lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL)), TEXT, SAME, 5),
    "roberta-tokens": (lambda: hf.RobertaForTokenClassification(hf.RobertaConfig(**SMALL)), TEXT, PARITY, 4),
    "distilbert-qa": (
        lambda: hf.DistilBertForQuestionAnswering(hf.DistilBertConfig(**DISTIL | {"n_layers": 4})),
        TEXT,
        SPAN,
        4,
    ),
    "gpt2": (lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2 | {"n_layer": 4})), TEXT, SAME, 5),
    "t5": (tiny_t5, TEXT, SAME, 6),
    "bart": (lambda: hf.BartForConditionalGeneration(hf.BartConfig(**BART)), TEXT, SAME, 6),
    "vit": (
        lambda: hf.ViTForImageClassification(hf.ViTConfig(**VIT | {"num_hidden_layers": 4})),
        {"pixel_values": torch.ones(1, 3, 8, 8)},
        CLASS,
        4,
    ),
    "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, tie_word_embeddings=False)), TEXT, SAME, 4),
    "llama-tied": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, tie_word_embeddings=True)), TEXT, SAME, 5),
    "deberta-classes": (
        lambda: hf.DebertaForSequenceClassification(hf.DebertaConfig(**DEBERTA | SMALL)),
        TEXT,
        CLASS,
        4,
    ),
    "mpnet-mlm": (lambda: hf.MPNetForMaskedLM(hf.MPNetConfig(**SMALL)), TEXT, SAME, 5),
}
FOUR = {"layers_per_ipu": [1, 1, 1, 1]}


def made(name):
    make, inputs, labels, stages = FAMILIES[name]
    torch.manual_seed(0)
    model = make()
    model.config.use_cache = False
    return model, {**inputs, **labels}, stages


def repeated(inputs, number):
    return {name: tensor.repeat(number, *[1] * (tensor.dim() - 1)) for name, tensor in inputs.items()}


class TestFamilies:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_train_with_the_minimum_accumulation_and_fail_below(self, name):
        model, inputs, stages = made(name)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        placement = place(model, inputs, IPUConfig(**FOUR))
        assert len(placement.stages()) == stages
        least = placement.minimum_gradient_accumulation
        assert least == 2 * stages - 1
        program = DeviceProgram(model, training=True)
        for accumulation, passes in ((least - 1, False), (least, True)):
            options = IPUConfig(**FOUR, gradient_accumulation_steps=accumulation).to_options()
            optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
            executor = poptorch.trainingModel(program, options, optimizer)
            if passes:
                assert torch.isfinite(executor(**repeated(inputs, accumulation))["loss"])
                assert executor.compiled.num_stages == stages
                assert executor.compiled.num_ipus == 4
            else:
                with pytest.raises(poptorch.Error, match="greater than or equal to the number of pipeline stages"):
                    executor(**repeated(inputs, accumulation))
            executor.destroy()
        after = model.state_dict()
        assert after.keys() == before.keys()
        assert any(not torch.equal(before[key], after[key]) for key in before)

    @pytest.mark.parametrize("name", [name for name in FAMILIES if name != "deberta-classes"])
    def test_can_be_compiled_strictly(self, name):
        model, inputs, _ = made(name)
        with poptorch.configured(strict=True):
            poptorch.inferenceModel(DeviceProgram(model))(**inputs)

    def test_that_depend_on_data_are_refused_when_strict(self):
        model, inputs, _ = made("deberta-classes")
        with poptorch.configured(strict=True), pytest.raises(poptorch.Error, match="cannot be compiled"):
            poptorch.inferenceModel(DeviceProgram(model))(**inputs)

    def test_with_shared_layers_are_refused(self):
        config = hf.AlbertConfig(**SMALL, embedding_size=8)
        with pytest.raises(IncompatibleIPUConfigError, match=r"AlbertForQuestionAnswering runs the layer .* 4 times"):
            place(hf.AlbertForQuestionAnswering(config), TEXT, IPUConfig(**FOUR))

    def test_tied_weights_stay_on_one_ipu(self):
        model, inputs, _ = made("bert-mlm")
        with pytest.raises(IncompatibleIPUConfigError, match=r"word_embeddings.weight is used on IPUs \[0, 3\]"):
            place(model, inputs, IPUConfig(**FOUR, parallelize_kwargs={"modules": {"cls": 3}}))


class TestPlacement:
    def test_can_be_chosen(self):
        model, inputs, _ = made("bert-qa")
        config = IPUConfig(**FOUR, parallelize_kwargs={"layers": ["bert.encoder.layer"], "modules": {"qa_outputs": 0}})
        placement = place(model, inputs, config)
        assert len(placement.stages()) == 5
        assert placement.ipu_of_parameter["qa_outputs.weight"] == 0

    @pytest.mark.parametrize(
        ("stack", "message"), [("bert.encoder.layers", "has no layers"), ("bert.encoder", "is a BertEncoder; name a")]
    )
    def test_chosen_stacks_must_exist(self, stack, message):
        model, inputs, _ = made("bert-qa")
        with pytest.raises(ValueError, match=message):
            place(model, inputs, IPUConfig(**FOUR, parallelize_kwargs={"layers": [stack]}))

    def test_needs_layers(self):
        with pytest.raises(IncompatibleIPUConfigError, match=r"No layers were found in Linear"):
            plan_placement(torch.nn.Linear(2, 2), {"input": torch.ones(1, 2)}, IPUConfig(**FOUR))

    def test_names_every_stage(self):
        model, inputs, _ = made("gpt2")
        stages = plan_placement(model, inputs, IPUConfig(**FOUR)).stages()
        assert [ipu for ipu, _ in stages] == [0, 1, 2, 3, 0]
        assert stages[-1][1] == ["lm_head"]
        assert stages[0][1][-1] == "transformer.h.0"

    def test_planning_leaves_the_model_unchanged(self):
        model, inputs, _ = made("bert-qa")
        model.train()
        hooks = [dict(module._forward_pre_hooks) for module in model.modules()]
        state = torch.get_rng_state()
        plan_placement(model, inputs, IPUConfig(**FOUR))
        assert hooks == [dict(module._forward_pre_hooks) for module in model.modules()]
        assert model.training
        assert torch.equal(state, torch.get_rng_state())

    def test_can_recompute_from_every_layer_but_the_last(self):
        model, inputs, _ = made("bert-qa")
        place(model, inputs, IPUConfig(**FOUR, recompute_checkpoint_every_layer=True))
        assert [len(layer._forward_hooks) for layer in model.bert.encoder.layer] == [1, 1, 1, 0]
        remove_placement(model)
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


class TestTrainer:
    def test_trains_a_pipeline(self, tmp_path):
        config = IPUConfig(layers_per_ipu=[1, 3], gradient_accumulation_steps=4, inference_device_iterations=2)
        torch.manual_seed(7)
        model = hf.BertForSequenceClassification(bert_config(layers=4, num_labels=2))
        trainer = ipu_trainer(tmp_path, config, model, eval_strategy="epoch")
        plain = ipu_trainer(tmp_path, IPUConfig(gradient_accumulation_steps=4), model, eval_strategy="epoch")
        trainer.train()
        plain.train()
        assert trainer.training_model.compiled.num_ipus == 2
        assert trainer.inference_model.compiled.num_ipus == 2
        for ours, theirs in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(ours, theirs), "where the layers lie does not change the numbers"

    def test_training_and_inference_may_be_placed_differently(self, tmp_path):
        config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, inference_layers_per_ipu=[-1])
        trainer = ipu_trainer(tmp_path, config)
        trainer.train()
        trainer.evaluate()
        assert trainer.inference_model.compiled.num_ipus == 1
        trainer.train()
        assert trainer.training_model.compiled.num_ipus == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"modules": {"bert.nothing": 1}},
            "places the module 'bert.nothing', which BertForSequence",
        ),
        ({"modules": {"classifier": 7}}, "puts classifier on IPU 7; a replica has the IPUs 0 to 1"),
        ({"module": {"classifier": 0}}, "Unknown `parallelize_kwargs` module; expected layers and modules"),
    ],
)
def test_invalid_options_are_refused(tmp_path, options, message):
    config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, parallelize_kwargs=options)
    with pytest.raises(ValueError, match=message):
        ipu_trainer(tmp_path, config).train()


def test_options_of_optimum_graphcore_warn(tmp_path, caplog):
    config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4, parallelize_kwargs={"use_cache": True})
    ipu_trainer(tmp_path, config, max_steps=1).train()
    assert "`parallelize_kwargs` has use_cache, which has no effect:" in caplog.text


def test_finds_stacks_by_class_name():
    class OddBlock(torch.nn.Module):
        pass

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = torch.nn.ModuleList([OddBlock(), OddBlock()])

    assert layer_names(Model()) == ["parts.0", "parts.1"]


class TestLayersPerIpu:
    @pytest.mark.parametrize(
        ("layers", "ipus", "number", "expected"),
        [
            ([-1], 2, 7, [0] * 3 + [1] * 4),
            ([2, -1], 2, 6, [0] * 2 + [1] * 4),
            ([-1, 2, -1, 2], 4, 7, [0, 1, 1, 2, 2, 3, 3]),
            ([-1], 1, 9, [0] * 9),
            ([3, 4], 2, 7, [0] * 3 + [1] * 4),
            ([5], 1, 9, [0] * 9),
        ],
    )
    def test_are_distributed(self, layers, ipus, number, expected):
        assert layer_ipus(layers, ipus, number) == expected

    @pytest.mark.parametrize(
        ("layers", "message"),
        [
            ([3, 3], "does not define the correct number of layers"),
            ([5, 5], "does not define the correct number of layers"),
            ([8, -1], "does not define the correct number of layers"),
            ([1, 2, 4], "its length does not match ipus_per_replica"),
            ([-1, 2, 4], "its length does not match ipus_per_replica"),
        ],
    )
    def test_must_add_up_to_the_layers_and_ipus(self, layers, message):
        with pytest.raises(IncompatibleIPUConfigError, match=message):
            layer_ipus(layers, 2, 7)

    @given(st.lists(st.integers(-1, 5), min_size=2, max_size=6), st.integers(1, 30))
    @settings(deadline=None)
    def test_place_every_layer_in_order_or_refuse(self, layers, number):
        try:
            ipus = layer_ipus(layers, len(layers), number)
        except IncompatibleIPUConfigError:
            placed = sum(count for count in layers if count > 0)
            assert placed > number or (placed < number and -1 not in layers)
            return
        assert len(ipus) == number
        assert ipus == sorted(ipus)
        for ipu, count in enumerate(layers):
            assert count == -1 or ipus.count(ipu) == count


class TestEncoderAndDecoder:
    """A configuration is split into those of an encoder and of a decoder."""

    @pytest.mark.parametrize("inference", [False, True])
    @pytest.mark.parametrize(
        ("layers", "num_encoder", "expected"),
        [
            ([12, 12], 12, ([12], [12])),
            ([-1, -1], 12, ([12], [12])),
            ([6, 6, 4, 4, 4, 0], 12, ([6, 6], [4, 4, 4, 0])),
            # Of several cuts that fit, the last that is a power of two.
            ([12, 0, 0, 12], 12, ([12, 0], [0, 12])),
            ([12, 0, 0, 0, 12], 12, ([12, 0, 0, 0], [12])),
            ([3, 3, 3, -1, 4, 4, -1, 2], 11, ([3, 3, 3, 2], [4, 4, 2, 2])),
        ],
    )
    def test_layers_and_ipus(self, layers, num_encoder, expected, inference):
        config = IPUConfig(**{f"{'inference_' if inference else ''}layers_per_ipu": layers}, replication_factor=2)
        config = config.eval() if inference else config
        total = sum(map(sum, expected))
        parts = split_encoder_decoder_ipu_config(config, num_encoder, total - num_encoder)
        assert tuple(part._layers_per_ipu for part in parts) == expected
        assert tuple(part._ipus_per_replica for part in parts) == tuple(map(len, expected))
        assert {(part.mode, part.replication_factor) for part in parts} == {(config.mode, 2)}
        assert config._layers_per_ipu == layers

    def test_what_is_set_for_each_ipu(self):
        config = IPUConfig(
            layers_per_ipu=[2, 2],
            matmul_proportion=[0.1, 0.2],
            serialized_embedding_splits_per_ipu=[3, 0],
            serialized_projection_splits_per_ipu=[0, 2],
        )
        encoder, decoder = split_encoder_decoder_ipu_config(config, 2, 2)
        assert (encoder.matmul_proportion, decoder.matmul_proportion) == ([0.1], [0.2])
        assert encoder.serialized_embedding_splits_per_ipu == [3]
        assert decoder.serialized_embedding_splits_per_ipu is None
        assert encoder.serialized_projection_splits_per_ipu is None
        assert decoder.serialized_projection_splits_per_ipu == [2]

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"layers_per_ipu": [4]}, "Need ipus_per_replica to be at least 2"),
            ({"layers_per_ipu": [1, 3]}, "Unable to find a valid split of ipu_config.layers_per_ipu"),
            ({"layers_per_ipu": [1, 1, 1, 1], "num_encoder": 3}, "on a power of two of IPUs"),
            (
                {"layers_per_ipu": [2, 2], "serialized_embedding_splits_per_ipu": [1, 1]},
                r"must have all splits placed on the encoder, which has \[1\] of \[1, 1\]",
            ),
            (
                {"layers_per_ipu": [2, 2], "serialized_projection_splits_per_ipu": [1, 1]},
                r"must have all splits placed on the decoder, which has \[1\] of \[1, 1\]",
            ),
        ],
    )
    def test_splits_that_do_not_exist_are_refused(self, settings, message):
        num_encoder = settings.pop("num_encoder", 2)
        with pytest.raises(IncompatibleIPUConfigError, match=message):
            split_encoder_decoder_ipu_config(IPUConfig(**settings), num_encoder, 4 - num_encoder)
