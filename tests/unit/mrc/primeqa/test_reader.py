import json

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from portico.errors import InputError
from portico.mrc.primeqa import EXTRACTIVE_HEAD, ExtractiveReader, ModelForDownstreamTasks


def test_primeqas_reader(model_folder, questions):
    reader = ExtractiveReader(str(model_folder), max_seq_len=64, stride=16, scorer_type="score_diff_based")
    contexts = [[q["context"], questions[9]["context"]] for q in questions[:3]]
    asked = [q["question"] for q in questions[:3]]
    with pytest.raises(InputError, match=r"call `load\(\)` once"):
        reader.predict(asked, contexts)
    reader.load()
    found = reader.predict(asked, contexts, example_ids=["a", "b", "c"])
    assert list(found) == ["a", "b", "c"]
    for example_id, own in zip(found, contexts, strict=True):
        assert len(found[example_id]) == 3
        for record in found[example_id]:
            assert list(record) == [
                "example_id",
                "passage_index",
                "span_answer_text",
                "span_answer",
                "span_answer_score",
                "confidence_score",
            ]
            span = record["span_answer"]
            text = own[record["passage_index"]][span["start_position"] : span["end_position"]]
            assert record["span_answer_text"] == text
    least = found["a"][0]["confidence_score"]
    (kept,) = reader.predict(asked, contexts, min_score_threshold=least)["0"]
    assert kept["span_answer_text"] == found["a"][0]["span_answer_text"]
    assert reader.predict(asked, contexts, min_score_threshold=1.01) == {"0": [], "1": [], "2": []}
    assert len(reader.predict(asked, contexts, max_num_answers=1)["2"]) == 1
    weighted = "weighted_sum_target_type_and_score_diff"
    with pytest.raises(InputError, match=r"no answer-type logits, which `scorer_type=weighted_sum.*score_diff_based`"):
        reader.predict(asked, contexts, scorer_type=weighted)
    with pytest.raises(InputError, match=r"`model` cannot change between calls"):
        reader.predict(asked, contexts, model="other")
    with pytest.raises(InputError, match=r"`use_fast=False` loads tokenizers"):
        ExtractiveReader(str(model_folder), use_fast=False)


def test_a_checkpoint_of_primeqa_keeps_its_head(model_folder, tmp_path):
    made = ModelForDownstreamTasks.from_config(
        AutoConfig.from_pretrained(model_folder), model_folder, task_heads=EXTRACTIVE_HEAD
    )
    made.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model_folder).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["task_heads"]  # PrimeQA does not name them
    (tmp_path / "config.json").write_text(json.dumps(config))
    reader = ExtractiveReader(str(tmp_path), max_seq_len=64, stride=16)
    reader.load()
    loaded = reader._loaded.model
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in made.state_dict().items())
    assert reader.predict(["Who?"], [["Ann lives in Oslo."]])["0"][0]["span_answer_text"]
