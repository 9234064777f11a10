"""Complete runs from settings: heads, sources, teachers, generated answers."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import EvalPrediction

from portico import InputError
from portico.experiments.experiment import build_experiment
from portico.mrc import ModelForDownstreamTasks
from portico.mrc.config import load_sources
from portico.mrc.corpus import generate
from portico.mrc.experiment import results_of
from unit.mrc.small_readers import SETTINGS, settings

T5 = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}


def extractive(folder, **groups):
    return build_experiment(settings(**groups), str(folder))


def generative(folder, **groups):
    shape = {} if "name_or_path" in groups.get("model", {}) else T5
    lengths = {"max_source_length": 48, "max_target_length": 8, "vocab_size": 400}
    given = {
        "_target_": "portico.mrc.experiment.MRCExperiment",
        "trainer": {"_target_": "portico.Seq2SeqMRCTrainer"},
        "args": {
            "_target_": "portico.Seq2SeqTrainingArguments",
            "predict_with_generate": True,
            "generation_max_length": 6,
            **SETTINGS["args"],
        },
        "model": {"_target_": "portico.mrc.config.EncoderDecoderModel", **shape, **groups.get("model", {})},
        "data": SETTINGS["data"],
        "preprocess": {
            "_target_": "portico.mrc.config.GenerativePreprocessing",
            **lengths,
            **groups.get("preprocess", {}),
        },
        "postprocess": {"_target_": "portico.mrc.config.GeneratedAnswers"},
    }
    return build_experiment(given, str(folder))


@pytest.mark.parametrize("head", ["extractive", "extractive_with_confidence"])
def test_a_head_is_chosen_by_name_and_saved(head, tmp_path, capsys):
    metrics = extractive(tmp_path / "run", model={"head": head}).train()
    assert {"eval_f1", "eval_loss"} <= set(metrics)
    assert "task_heads.qa_head.classifier.dense.weight" in load_file(tmp_path / "run" / "model.safetensors")
    again = extractive(tmp_path / "again", model={"name_or_path": str(tmp_path / "run")})
    assert again.train()["eval_f1"] >= 0
    assert ModelForDownstreamTasks.from_pretrained(tmp_path / "again").config.task_head == "qa_head"


def test_beams_are_searched_and_read(tmp_path, capsys):
    metrics = extractive(tmp_path, model={"head": "beam_search"}).train()
    assert {"eval_f1", "eval_loss"} <= set(metrics)
    assert (tmp_path / "report.html").is_file()


def test_an_unknown_head_is_refused_before_any_work(tmp_path):
    with pytest.raises(InputError, match=r"model.head=pointer` is unknown; set it to one of: span, extractive"):
        extractive(tmp_path, model={"head": "pointer"}).train()


def test_sources_are_trained_together_and_reported_separately(tmp_path, capsys):
    metrics = extractive(tmp_path, data={"sources": [{"seed": 1}, {"seed": 2, "num_validation": 8}]}).train()
    assert metrics["eval_total"] == 16
    for number in range(2):
        assert (tmp_path / f"source_{number}" / "report.html").is_file()
        assert (tmp_path / f"eval_{number}_results.json").is_file()


def test_a_teacher_is_loaded_from_its_folder(tmp_path, capsys):
    extractive(tmp_path / "teacher").train()
    taught = {"teacher": str(tmp_path / "teacher"), "distillation_loss": "kl", "distillation_weight": 0.5}
    metrics = [extractive(tmp_path / name, model=model).train() for name, model in (("a", taught), ("b", {}))]
    assert metrics[0]["train_loss"] != metrics[1]["train_loss"]
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("a", "b")]
    assert not torch.equal(*(one["bert.encoder.layer.0.output.dense.weight"] for one in weights))


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("a.json", r"`data.sources=a.json` is not a list of sources"),
        ([], "is not a list of sources"),
        ([1], "is not a list of sources"),
        ([{"trian_file": "a"}], "`data.sources` sets trian_file, which `data` does not have"),
    ],
)
def test_invalid_sources_are_refused(sources, message):
    with pytest.raises(InputError, match=message):
        load_sources({**SETTINGS["data"], "sources": sources})


def test_each_source_overrides_the_shared_keys():
    made = load_sources({**SETTINGS["data"], "sources": [{"num_train": 8}, {"seed": 3}]})
    assert [len(one.train) for one in made] == [8, 32]
    assert made[0].validation != made[1].validation


@pytest.mark.parametrize(
    "preprocess", [{}, {"num_passages": 2, "max_source_length": 24}], ids=["one_text", "passages"]
)
def test_answers_are_generated(preprocess, tmp_path, capsys):
    metrics = generative(tmp_path / "run", preprocess=preprocess).train()
    assert {"eval_f1", "eval_loss", "train_loss"} <= set(metrics)
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"eval_predictions.json", "eval_references.json", "model.safetensors", "all_results.json"} <= written
    assert "Generated answers" in capsys.readouterr().out
    pretrained = generative(tmp_path / "again", preprocess=preprocess, model={"name_or_path": str(tmp_path / "run")})
    assert pretrained.train()["train_loss"] < metrics["train_loss"]


def test_invalid_generators_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"`model.num_heads=x` cannot be used; set it to an integer of 1 or more"):
        generative(tmp_path, model={"num_heads": "x"}).train()
    (tmp_path / "config.json").touch()
    with pytest.raises(InputError, match=r"` cannot be loaded as an encoder-decoder with its tokenizer"):
        generative(tmp_path, model={"name_or_path": str(tmp_path)}).train()
    with pytest.raises(InputError, match=r"`model.d_model=16`.* would shape a new small T5"):
        generative(tmp_path, model={"name_or_path": str(tmp_path), "d_model": 16}).train()
    with pytest.raises(InputError, match=r"`preprocess.num_passages=0` cannot be used"):
        generative(tmp_path, preprocess={"num_passages": 0}).train()


# ---- Classes of the user ----


class FirstWords:
    """A group `postprocess` whose function has the form of the one in the QA example of transformers."""

    def __init__(self, form: str = "records") -> None:
        self.form = form

    def build(self, model, tokenizer, version_2_with_negative):
        def post_process(examples, features, predictions, stage="eval"):
            texts = {one["id"]: one["context"].split()[0] for one in examples}
            records = [{"id": key, "prediction_text": text} for key, text in texts.items()]
            references = [{"id": one["id"], "answers": one["answers"]} for one in examples]
            given = {"records": records, "mapping": texts, "numbers": [1.0] * len(records), "some": records[1:]}
            return EvalPrediction(predictions=given[self.form], label_ids=references)

        return post_process


class Lengths:
    """A metric of the user, whose scores have other names."""

    def __call__(self, answered):
        lengths = [len(one["prediction_text"]) for one in answered.predictions]
        return {"short": 100.0 / (1 + sum(lengths)), "count": len(lengths)}


class Spans:
    """A metric that needs more than texts."""

    def __call__(self, answered):
        return {"found": float(len(answered.answers.predictions))}


SAVING = {"args": {**SETTINGS["args"], "save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 1}}
SAVING["args"] |= {"save_steps": 1, "load_best_model_at_end": True, "metric_for_best_model": "f1"}


def test_a_post_processing_in_the_form_of_the_example_trains_and_reports(tmp_path, capsys):
    own = {"postprocess": {"_target_": f"{__name__}.FirstWords"}, "metric": {"_target_": f"{__name__}.Lengths"}}
    own["metric"]["headline"] = "short"
    metrics = extractive(tmp_path / "run", **own).train()
    assert metrics["eval_count"] == SETTINGS["data"]["num_validation"]
    assert "Individual questions" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    again = extractive(tmp_path / "again", model={"name_or_path": str(tmp_path / "run")}, **own)
    assert again.evaluate()["eval_count"] == metrics["eval_count"]


@pytest.mark.parametrize("form", ["numbers", "some"])
def test_what_is_no_answer_to_every_question_is_refused(form, tmp_path):
    examples = generate(num_train=1, num_validation=4, seed=0)[1]
    answered = FirstWords(form).build(None, None, False)(examples, None, None)
    with pytest.raises(InputError, match=r"EvalPrediction, whose `predictions` are not the answers .*; return `EvalP"):
        results_of(examples, answered)
    texts = FirstWords("mapping").build(None, None, False)(examples, None, None)
    assert [one.predicted_text for one in results_of(examples, texts)] == list(texts.predictions.values())


@pytest.mark.parametrize("choice", [{"metric": {"headline": "short"}}, {"objective": {"eval_short": "max"}}])
def test_one_key_chooses_the_best_by_a_metric_of_the_user(choice, tmp_path, capsys):
    metric = {"_target_": f"{__name__}.Lengths", **choice.get("metric", {})}
    arguments = {**SAVING["args"], "metric_for_best_model": metric.get("headline", "f1")}
    experiment = extractive(tmp_path, **{**choice, "metric": metric}, args=arguments)
    assert "eval_short" in experiment.train()
    assert "short" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_score_that_a_metric_of_the_user_lacks_is_refused_before_the_training(tmp_path):
    with pytest.raises(InputError, match=r"`metric.headline=f1` is not a score of this run; set it to one of.* short"):
        extractive(tmp_path, metric={"_target_": f"{__name__}.Lengths"}, **SAVING).train()
    # Which scores others have is known after an evaluation.
    assert extractive(tmp_path, metric={"_target_": f"{__name__}.Spans"}).train()["eval_found"] > 0
