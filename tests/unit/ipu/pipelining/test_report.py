"""Report of a placement: memory, batch sizes, picture."""

import json

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

import poptorch_emulator as poptorch
from ipu_trainers import ipu_trainer, reader
from portico.ipu.config import IPUConfig
from portico.ipu.pipelining.placement import plan_placement
from portico.ipu.pipelining.report import IPUMemory, PlacementReport, batch_arithmetic, pipeline_picture

LARGE = {"vocab_size": 60_000, "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 16}
TEXT = {"input_ids": torch.arange(1, 9).reshape(1, 8)}


def report(optimizer=poptorch.optim.AdamW, half=False, **attributes):
    config = IPUConfig(layers_per_ipu=[1, 1], **attributes)
    model = reader().half() if half else reader()
    accum = torch.float16 if half else torch.float32
    made = optimizer(model.parameters(), lr=0.1, accum_type=accum)
    placement = plan_placement(model, TEXT, config)
    return PlacementReport.create(placement, model, config, micro_batch_size=4, optimizer=made), model


class TestMemory:
    def test_counts_every_weight_once(self):
        found, model = report()
        assert sum(one.num_parameters for one in found.memory) == sum(p.numel() for p in model.parameters())
        assert found.memory[0].weight_bytes == 4 * found.memory[0].num_parameters
        assert found.memory[0].optimizer_bytes == 8 * found.memory[0].num_parameters
        assert found.memory[0].gradient_bytes == 0, "one micro-batch needs no accumulator"

    def test_of_half_precision_is_half(self):
        found, _ = report(half=True, gradient_accumulation_steps=4)
        one = found.memory[1]
        assert (one.weight_bytes, one.gradient_bytes) == (2 * one.num_parameters, 2 * one.num_parameters)

    @pytest.mark.parametrize(
        ("optimizer", "attributes", "each"),
        [
            (poptorch.optim.SGD, {}, 0),
            (poptorch.optim.RMSprop, {}, 4),
            (poptorch.optim.AdamW, {"optimizer_state_offchip": True}, 0),
            (poptorch.optim.AdamW, {"replicated_tensor_sharding": True, "replication_factor": 2}, 4),
            (poptorch.optim.AdamW, {"replicated_tensor_sharding": True}, 8),
        ],
    )
    def test_of_the_optimizer_depends_on_its_location(self, optimizer, attributes, each):
        found, _ = report(optimizer, **attributes)
        assert found.memory[0].optimizer_bytes == each * found.memory[0].num_parameters

    def test_that_does_not_fit_is_reported(self):
        with torch.device("meta"):
            model = BertForQuestionAnswering(BertConfig(**LARGE))
        config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=8)
        inputs = {"input_ids": TEXT["input_ids"].to("meta")}
        made = PlacementReport.create(
            plan_placement(model, inputs, config),
            model,
            config,
            micro_batch_size=1,
            optimizer=poptorch.optim.AdamW(model.parameters(), lr=0.1),
        )
        assert made.memory[0].share > 1
        assert "IPU 0 has 900 MB: move layers to other IPUs, or set `optimizer_state_offchip=True`" in made.text()


def test_batch_sizes_are_explained():
    config = IPUConfig(gradient_accumulation_steps=8, replication_factor=2, device_iterations=3)
    words = " ".join(batch_arithmetic(config, 4))
    assert "4 x 8 accumulated x 2 replicas = 64 rows" in words
    assert "makes 3 weight update(s) and takes 64 x 3 = 192 rows" in words


def test_is_saved_and_drawn(tmp_path):
    found, _ = report()
    found.save(tmp_path)
    saved = json.loads((tmp_path / "placement.json").read_text())
    assert [ipu for ipu, _ in saved["stages"]] == [0, 1]
    assert saved["minimum_gradient_accumulation"] == 3
    assert (tmp_path / "placement.txt").read_text() == found.text() + "\n"
    picture = pipeline_picture(found)
    assert picture.count(">stage ") == 2
    assert "bert.encoder.layer.1" in picture


def test_trainer_prints_and_saves_it(tmp_path, capsys):
    config = IPUConfig(layers_per_ipu=[1, 1], gradient_accumulation_steps=4)
    trainer = ipu_trainer(tmp_path, config, max_steps=1)
    trainer.train()
    assert "2 stages; training needs a gradient accumulation of at least 3" in capsys.readouterr().out
    assert (tmp_path / "placement.json").is_file()


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["bert.encoder.layer.0"], "bert.encoder.layer.0"),
        (["bert.embeddings.word_embeddings", "bert.embeddings.LayerNorm"], "to LayerNorm"),
        (["bert.encoder.layer.11.output"], "layer.11.output"),
        (["a" * 30], "a" * 30),
    ],
)
def test_picture_labels_are_whole_parts_that_fit(names, label):
    report = PlacementReport([(0, names)], 1, [IPUMemory(0, 1, 1, 1, 1)], [])
    drawn = pipeline_picture(report)
    assert f">{label}</text>" in drawn
    # A box has room for 20 characters; longer labels are squeezed.
    assert ('textLength="134"' in drawn) is (len(label) > 20)
