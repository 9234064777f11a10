"""Whole runs of reading comprehension, as the command line makes them; their metrics and the table at their end."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import BertForQuestionAnswering, EarlyStoppingCallback

from mrc_data import to_squad
from portico import InputError
from portico.cli import compose
from portico.experiments.experiment import build_experiment
from portico.experiments.settings import config_dir
from portico.mrc import Mlqa, Mrqa, NqF1, Rouge, SquadV1, SquadV2, TydiF1
from portico.mrc.config import EncoderModel
from portico.mrc.corpus import generate
from portico.mrc.experiment import prepare_metric, print_summary
from portico.mrc.metrics.spans import SpanScores
from portico.mrc.report.command import read_run
from unit.mrc.small_readers import SETTINGS, settings


def train(tmp_path, **changes):
    return build_experiment(settings(**changes), str(tmp_path / "run")).train()


@pytest.fixture(scope="module")
def squad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    for name, part in zip(("train", "dev"), generate(num_train=24, num_validation=16, seed=3), strict=True):
        (folder / f"{name}.json").write_text(json.dumps(to_squad(part)), encoding="utf-8")
    return {"train_file": str(folder / "train.json"), "validation_file": str(folder / "dev.json")}


def test_run_writes_everything_and_returns_the_metrics(tmp_path, capsys):
    metrics = train(tmp_path)
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert written >= {
        "all_results.json",
        "train_results.json",
        "eval_results.json",
        "trainer_state.json",
        "eval_predictions.json",
        "eval_nbest_predictions.json",
        "eval_null_odds.json",
        "report.html",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert metrics["eval_total"] == 24
    results = json.loads((tmp_path / "run" / "all_results.json").read_text())
    assert results["eval_f1"] == metrics["eval_f1"]
    assert results["train_loss"] == metrics["train_loss"]
    assert "Exact match" in capsys.readouterr().out


def test_a_run_that_answers_nothing_says_what_to_do(tmp_path, capsys):
    train(tmp_path, postprocess={"null_score_diff_threshold": -1e6})
    shown = capsys.readouterr().out
    assert "No question was answered. Start from a pretrained model (model.name_or_path=<folder or hub name>)" in shown


NOT_OF_A_METRIC = {f"eval_{name}" for name in ("loss", "runtime", "samples", "samples_per_second", "steps_per_second")}
TYDI = {"metric": {"_target_": "portico.mrc.TydiF1", "passage_non_null_threshold": 1, "minimal_non_null_threshold": 1}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"metric": {"version_2_with_negative": True, "_target_": "portico.mrc.SquadV2", "average_precision": True}},
        {"postprocess": {"mode": "primeqa", "scorer_type": "score_diff_based"}},
        TYDI,
    ],
)
def test_scores_are_known_before_the_training(tmp_path, changes):
    experiment = build_experiment(settings(**changes), str(tmp_path / "run"))
    known = {f"eval_{name}" for name in experiment._score_names}
    reported = {name for name in experiment.train() if name.startswith("eval_")}
    assert reported - known == NOT_OF_A_METRIC
    assert known <= reported


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"args": {"metric_for_best_model": "f2"}, "metric": {"headline": "f2"}},
            r"`metric.headline=f2` is not a score of this run; set it to one of f1, best_f1, ",
        ),
        (
            {"args": {"metric_for_best_model": "eval_exakt"}},
            r"`args.metric_for_best_model=exakt` is not a score of this run; set it to one of exact, ",
        ),
    ],
)
def test_an_unknown_score_is_refused_before_the_training(tmp_path, changes, message, monkeypatch):
    monkeypatch.setattr(EncoderModel, "load", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(InputError, match=message):
        train(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "name", "message"),
    [
        ({"metric": {"headline": "f2"}}, "eval_f2", r"`metric.headline=f2` is .* one of f1, "),
        ({}, "eval_f2", r"`objective.metric=eval_f2` is .* one of eval_f1, "),
        ({}, "f1", r"`objective.metric=f1` is not a score of this run; set it to one of eval_f1, "),
        (TYDI, "eval_avg_f1", r"`objective.metric=eval_avg_f1` is .* one of eval_avg_"),
    ],
)
def test_an_unknown_objective_is_refused_before_the_training(tmp_path, changes, name, message):
    with pytest.raises(InputError, match=message):
        build_experiment(settings(**changes), str(tmp_path)).check_objective(name)


@pytest.mark.parametrize(
    "name", ["eval_f1", "eval_loss", "eval_samples", "train_loss", "epoch", "eval_mem_cpu_alloc_delta"]
)
def test_what_a_run_reports_can_be_its_objective(tmp_path, name):
    build_experiment(settings(), str(tmp_path)).check_objective(name)


def test_only_an_evaluation_tells_what_a_metric_of_ones_own_reports(tmp_path):
    experiment = build_experiment(settings(metric={"_target_": f"{__name__}.Own"}), str(tmp_path))
    experiment.check_objective("eval_anything")


class Own:
    def __call__(self, answered):
        return {"anything": 1.0}


def test_report_shows_what_answering_nothing_scores_by_the_metric_of_the_run(tmp_path, capsys):
    metrics = train(tmp_path, postprocess={"null_score_diff_threshold": -100})
    run = tmp_path / "run"
    for record in (json.loads((run / "report.json").read_text()), vars(read_run(run, data=questions_of(tmp_path)))):
        declining, answering = record["baselines"].values()
        assert declining["f1"] == metrics["eval_f1"] > answering["f1"]
        assert declining["NoAns_exact"] == 100 > answering["NoAns_exact"]
    assert "is no better than answering nothing, which gives" in (run / "report.html").read_text(encoding="utf-8")


def questions_of(folder):
    """Write the questions that `SETTINGS` evaluates on."""
    path = folder / "questions.json"
    path.write_text(json.dumps(to_squad(generate(**SETTINGS["data"])[1])), encoding="utf-8")
    return path


def test_run_on_files_continues_from_the_model_of_another(tmp_path, squad_files):
    train(tmp_path / "first")
    model = str(tmp_path / "first" / "run")
    metrics = train(tmp_path / "second", data=squad_files, model={"name_or_path": model})
    assert metrics["eval_total"] == 16
    saved = BertForQuestionAnswering.from_pretrained(tmp_path / "second" / "run")
    assert saved.config.hidden_size == 32


def test_unusable_records_are_left_out_when_asked(tmp_path, squad_files, caplog):
    records = json.loads(Path(squad_files["train_file"]).read_text(encoding="utf-8"))
    records["data"][0]["paragraphs"][0]["qas"][0]["question"] = ""
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps(records), encoding="utf-8")
    data = {**squad_files, "train_file": str(broken)}
    with pytest.raises(InputError, match=r"`question` is empty.*`data.skip_invalid=true`"):
        train(tmp_path / "strict", data=data)
    train(tmp_path / "lenient", data={**data, "skip_invalid": True})
    assert "left out 1 unusable record" in caplog.text


def test_answerable_data_is_scored_by_squad_1(tmp_path):
    training, dev = (
        [e for e in part if e["answers"]["text"]] for part in generate(num_train=40, num_validation=40, seed=3)
    )
    files = {}
    for name, part in (("train_file", training), ("validation_file", dev)):
        files[name] = str(tmp_path / f"{name}.json")
        (tmp_path / f"{name}.json").write_text(json.dumps(to_squad(part)), encoding="utf-8")
    metrics = train(tmp_path, data=files)
    assert {"eval_exact_match", "eval_f1"} <= set(metrics)
    assert "eval_NoAns_f1" not in metrics


def test_resumed_run_continues_from_its_checkpoint(tmp_path):
    arguments = {"save_strategy": "steps", "save_steps": 1}
    train(tmp_path, args=arguments)
    metrics = train(tmp_path, args={**arguments, "max_steps": 4, "resume_from_checkpoint": True})
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["global_step"] == 4
    assert metrics["epoch"] > 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"train_file": "a.json"}}, r"`data.train_file=a.json` came without `data.validation_file`"),
        ({"data": {"train_file": "no.json", "validation_file": "no.json"}}, r"no\.json"),
        ({"data": {"train_file": [], "validation_file": "a.json"}}, r"`data.train_file=\[\]` names no file; set it"),
        (
            {"postprocess": {"search": "all"}},
            r"`postprocess.search=all` .* set it to one of top, exhaustive",
        ),
        (
            {"postprocess": {"mode": "beam_search"}},
            r"`postprocess.mode=beam_search` reads beams, which the model's head, span, does not give; .* to portico",
        ),
        (
            {"postprocess": {"mode": "hf"}, "model": {"head": "beam_search"}},
            r"`postprocess.mode=hf` reads logits, which the model's head, beam_search, .* set the mode to beam_search",
        ),
        (
            {"postprocess": {"mode": "primeqa"}},
            r"the model's head, span, does not classify it; set `model.head=extractive`, or .*=score_diff_based`",
        ),
        (
            {"preprocess": {"packing": True}, "model": {"head": "extractive"}},
            r"`preprocess.packing=true` packs features for a plain .* head, but the model's is extractive",
        ),
        ({"model": {"distillation_temperature": 2.0}}, r"`model.distillation_temperature=2.0` .* set `model.teacher`"),
        (
            {"metric": {"_target_": "portico.mrc.TydiF1"}},
            r"what `metric.passage_non_null_threshold=2` and `metric.minimal.*=2` annotators agree on, but the "
            r"questions to evaluate on have at most 1; set each to 1",
        ),
        (
            {"metric": {"_target_": "portico.mrc.TydiF1", "passage_non_null_threshold": 0}},
            r"what `metric.passage_non_null_threshold=0` and",
        ),
        (
            {"data": {"format": "squad"}},
            r"`data.format=squad` says how questions are read, but nothing says where they are; set data.train_file",
        ),
        (
            {"data": {"sources": [{"num_train": 8}, {"num_train": "x"}]}},
            r"`data.sources.num_train=x` cannot be used; set it to an integer",
        ),
        (
            {"data": {"max_train_samples": 0}},
            r"`data.max_train_samples=0` .* integer of 1 or more, or null",
        ),
        (
            {"data": {"max_train_samples": "few"}},
            r"`data.max_train_samples=few` .* integer of 1 or more",
        ),
        ({"data": {"num_train": "many"}}, r"`data.num_train=many` cannot be used"),
        ({"preprocess": {"vocab_size": "abc"}}, r"`preprocess.vocab_size=abc` cannot be used"),
        ({"postprocess": {"n_best_size": 0}}, r"`postprocess.n_best_size=0` cannot be used"),
        (
            {"metric": {"version_2_with_negative": "maybe"}},
            r"version_2_with_negative=maybe` .* true or false, or null",
        ),
        ({"args": {"learning_rate": "abc"}}, r"`args.learning_rate=abc` cannot be used; set it to a number of 0"),
        ({"args": {"max_steps": 1.5}}, r"`args.max_steps=1.5` cannot be used; set it to an integer"),
        ({"args": {"deepspeed": "zero.json"}}, r"`deepspeed='zero.json'` cannot be read .*; give a dict or a JSON"),
        (
            {"callbacks": [EarlyStoppingCallback()]},
            r"`args.eval_strategy=no` makes none .* `callbacks=early_stopping`",
        ),
        (
            {"callbacks": [EarlyStoppingCallback()], "args": {"eval_strategy": "epoch"}},
            r"no metric was chosen; set `args.metric_for_best_model`",
        ),
        ({"model": {"name_or_path": "/nowhere"}}, r"`model.name_or_path=/nowhere` does not exist; set it to a folder"),
        (
            {"model": {"num_attention_heads": 7}},
            r"No BERT can be made with .*`model.num_attention_heads=7`.* not a multiple .*leave them out",
        ),
        (
            {"model": {"hidden_size": "big"}},
            r"`model.hidden_size=big` cannot be used; set it to an integer of 1 or more, or null\.",
        ),
        (
            {"args": {"eval_strategy": "sometimes"}},
            "`args.eval_strategy=sometimes` .* one of no, steps, epoch",
        ),
        (
            {"preprocess": {"doc_stride": 128}},
            r"`preprocess.doc_stride=128` must be .* below `preprocess.max_seq_length=128`",
        ),
        (
            {"preprocess": {"max_seq_length": 256}, "model": {"max_position_embeddings": 64}},
            r"`preprocess.max_seq_length=256` is more than the model takes \(64 tokens\)",
        ),
    ],
)
def test_bad_settings_are_refused_before_training(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        train(tmp_path, **changes)


def test_the_shape_of_a_loaded_model_is_its_own(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"`model.hidden_size=64` would shape a new small BERT, but `model.name_"):
        train(tmp_path, model={"name_or_path": str(tmp_path), "hidden_size": 64})


def in_base_schema(example, *, place):
    """Return a record of two contexts, of which the answer stands in the one at a place."""
    starts, texts = example["answers"]["answer_start"][:1], example["answers"]["text"]
    target = {
        "start_positions": starts or [-1],
        "end_positions": [start + len(texts[0]) for start in starts] or [-1],
        "passage_indices": [place if starts else -1],
        "yes_no_answer": ["NONE"],
    }
    contexts = ["The mill was sold.", "The mill was sold."]
    contexts[place] = example["context"]
    return {
        "question": example["question"],
        "context": contexts,
        "example_id": example["id"],
        "language": "english",
        "target": target,
    }


def write_lines(path, records):
    path.write_text("\n".join(map(json.dumps, records)), encoding="utf-8")
    return str(path)


def test_a_run_on_questions_with_several_contexts_shows_them_in_its_report(tmp_path):
    training, dev = generate(num_train=24, num_validation=16, seed=3)
    data = {
        name: write_lines(tmp_path / f"{name}.jsonl", [in_base_schema(one, place=n % 2) for n, one in enumerate(part)])
        for name, part in (("train_file", training), ("validation_file", dev))
    }
    assert train(tmp_path, data=data)["eval_total"] == 16
    (folder,) = (tmp_path / "run").parent.glob("run")
    results = read_run(folder.rename(tmp_path / "moved"), data=data["validation_file"]).results
    assert len(results) == 16
    for one in results:
        assert all(one.context[start : start + len(text)] == text for text, start in one.golds)
        if one.predicted_span is not None:
            assert one.context[slice(*one.predicted_span)] == one.predicted_text


def test_answers_without_a_place_are_refused_before_training(tmp_path):
    record = {"id": "a", "input": "Who?", "output": [{"answer": "Ana"}], "passages": [{"text": "It was Ana."}]}
    path = write_lines(tmp_path / "fid.jsonl", [record])
    data = {"train_file": path, "validation_file": path}
    with pytest.raises(InputError, match=r"The answer 'Ana' of example 'a' .*mrc_fid"):
        train(tmp_path, data=data)


TWICE = {"text": ["mill"] * 2, "answer_start": [4] * 2}
ANSWERED = {"id": "a", "answers": {"text": ["mill"], "answer_start": [4]}}
UNANSWERABLE = {"id": "b", "answers": {"text": [], "answer_start": []}}
CLASSES = {"squad": SquadV1, "squad_v2": SquadV2, "mlqa": Mlqa, "mrqa": Mrqa, "rouge": Rouge}
CLASSES |= {"tydi": TydiF1, "nq": NqF1}


def chosen(name, **keys):
    """Return the metric that a file of `conf/metric` builds."""
    keys = {"language": "de", **keys} if name == "mlqa" else keys
    composed = compose(["_target_=fake_experiment.FakeExperiment", f"metric={name}"])
    metric = {**composed["metric"], **keys}
    return build_experiment({"_target_": composed["_target_"], "metric": metric}, "out")


def prepared(metric, examples=({**ANSWERED, "answers": TWICE},), negatives=False, **options):
    return prepare_metric(metric, examples, negatives, **options)


def test_every_file_of_a_metric_is_tested_and_described():
    files = {path.stem for path in (config_dir() / "metric").glob("*.yaml")}
    assert files == CLASSES.keys()
    page = (Path(__file__).parents[3] / "docs/mrc.md").read_text(encoding="utf-8")
    assert [name for name in files if f"\n| `{name}` |" not in page] == []


@pytest.mark.parametrize("name", CLASSES)
def test_every_shipped_file_builds_its_metric(name):
    experiment = chosen(name)
    assert type(experiment.metric) is CLASSES[name]
    made = prepared(experiment.metric)
    assert type(made.metric if isinstance(made, SpanScores) else made) is CLASSES[name]
    assert isinstance(experiment.headline, str)


@pytest.mark.parametrize(("negatives", "expected"), [(True, SquadV2), (False, SquadV1)])
def test_squad_is_that_of_2_0_where_no_answer_can_be_predicted(negatives, expected):
    assert type(prepared(SquadV1(), negatives=negatives)) is expected


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        (
            "nq",
            {"language": "de"},
            r"'metric.language' is not a setting; those of metric are: long_non",
        ),
        ("squad", {"use_stemmer": True}, r"'metric.use_stemmer' is not a setting"),
        ("mlqa", {"language": "fi"}, r"`language='fi'` is not a language of MLQA"),
        ("nq", {"long_non_null_threshold": "two"}, r"`metric.long_non_null_threshold=two` cannot be used; .* integer"),
    ],
)
def test_wrong_settings_of_a_metric_are_refused(name, keys, message):
    with pytest.raises(InputError, match=message):
        chosen(name, **keys)
    with pytest.raises(InputError, match=r"TydiF1 scores spans of passages, but generated answers are strings"):
        prepared(TydiF1(), has_spans=False)


def test_mlqa_needs_the_language_of_every_question():
    metric = chosen("mlqa", language=None).metric
    assert prepared(metric, [{**ANSWERED, "language": "de"}]).languages == {ANSWERED["id"]: "de"}
    with pytest.raises(InputError, match=r"`language=None` is not a language of MLQA or XQuAD.*`language` of every"):
        prepared(metric, [ANSWERED])


@pytest.mark.parametrize("name", ["squad", "mlqa", "mrqa", "rouge"])
def test_a_metric_that_needs_answers_refuses_questions_without_before_any_work(name):
    metric = chosen(name).metric
    with pytest.raises(InputError, match=rf"1 of 2 questions .* such as 'b', and {CLASSES[name].__name__} "):
        prepared(metric, [ANSWERED, UNANSWERABLE])


class StubAnswers:
    """As :class:`portico.mrc.postprocess.Answers` has it; no answer passes the threshold yet."""

    null_odds = None

    def __init__(self, spans, passages, answer_types, probability=0.5):
        self.spans, self.passages, self.answer_types = dict.fromkeys(spans), passages, answer_types
        self.nbest = {key: [{"probability": probability}] if span else [] for key, span in spans.items()}
        self._best = spans

    def at_null_threshold(self, threshold):
        assert threshold == float("inf")
        self.spans = self._best
        return self


def test_spans_of_a_run_are_scored():
    target = {
        "start_positions": [4, 4],
        "end_positions": [8, 8],
        "passage_indices": [1, 1],
        "yes_no_answer": ["NONE"] * 2,
    }
    yes = {"start_positions": [-1], "end_positions": [-1], "passage_indices": [0], "yes_no_answer": ["YES"]}
    examples = [
        {**ANSWERED, "language": "thai", "target": target},
        {**UNANSWERABLE, "id": "c", "language": "thai", "target": yes},
        {**UNANSWERABLE, "language": "thai"},
        ANSWERED | {"id": "d"},
    ]
    spans = {"a": (4, 8), "c": None, "b": None, "d": (4, 8)}
    answers = StubAnswers(spans, {"a": 1, "c": 0, "b": -1, "d": 0}, {"a": 1, "c": 3, "b": 0, "d": 1})
    metric = prepared(TydiF1(passage_non_null_threshold=1, minimal_non_null_threshold=1), examples)
    for _ in range(2):  # an evaluation does not count the one before
        scores = metric(SimpleNamespace(answers=answers))
        assert scores["thai_minimal_f1"] == scores["thai_passage_f1"] == 1.0
        assert scores["UNKNOWN_minimal_f1"] == scores["UNKNOWN_passage_f1"] == 1.0
        assert scores["thai_passage_threshold"] == 0.0
        assert scores["UNKNOWN_minimal_threshold"] == 0.5


def test_null_odds_are_the_scores_of_spans():
    answers = StubAnswers({"a": (4, 8)}, {"a": 0}, {"a": 1})
    answers.null_odds = {"a": -2.5}
    metric = prepared(NqF1(short_non_null_threshold=1, long_non_null_threshold=1))
    assert metric(SimpleNamespace(answers=answers))["short_answer_best_threshold"] == 2.5


def printed(capsys, **metrics):
    metrics = {f"eval_{name}": value for name, value in metrics.items()}
    print_summary(metrics, ["eval_mine"], title="Run", files={"Report": "report.html"}, seconds=61.0)
    return " ".join(capsys.readouterr().out.replace("│", " ").replace("┃", " ").split())


@pytest.mark.parametrize(
    ("metrics", "rows"),
    [
        ({"exact_match": 50.0, "f1": 62.25}, ["F1 62.2", "Exact match 50.0"]),
        ({"exact": 1.0, "exact_match": 2.0}, ["Exact match 1.0 exact_match 2.0"]),
        (
            {"exact": 1.0, "NoAns_exact": 2.0, "total": 1234},
            ["Exact match 1.0", "there is none 2.0", "Questions 1,234"],
        ),
        (
            {"HasAns_total": 710, "best_exact": 64.3},
            ["Questions with an answer 710", "Exact match at the best threshold 64.3"],
        ),
        ({"best_f1": 70.0, "pr_f1_ap": 81.0}, ["best threshold 70.0", "Average precision of F1 81.0"]),
        (
            {"NoAns_f1": 50.0, "best_f1_thresh": 0.12345, "best_exact_thresh": 0.5},
            ["F1 where there is none 50.0", "Threshold of the best F1 0.123", "Threshold of the best exact match 0.5"],
        ),
        ({"pr_exact_ap": 1.0, "pr_oracle_ap": 2.0}, ["precision of exact match 1.0", "precision of an oracle 2.0"]),
        ({"avg_passage_f1": 0.5, "avg_minimal_f1": 0.25}, ["Passage F1, mean of languages 50.0", "languages 25.0"]),
        (
            {"long_answer_best_f1": 0.75, "short_answer_best_f1": 0.5, "long_answer_n": 9},
            ["threshold 75.0", "threshold 50.0"],
        ),
        ({"rouge1": 30.0, "kilt_rougeL": 20.0}, ["ROUGE-1 30.0", "ROUGE-L as KILT counts 20.0"]),
        ({"f1": 1.0, "mine": 0.12345, "other": 3}, ["mine 0.1235 F1 1.0 other 3 "]),
        ({"loss": 0.5, "runtime": 7.0, "mine": 1.0}, ["mine 1 Loss 0.500 Time of"]),
        ({f"score_{number}": 1.0 for number in range(33)}, ["score_29 1 3 more in all_results.json Time of"]),
        ({"loss": 0.5}, ["Loss 0.500", "Time of the whole run 1 min 1 s", "Report: report.html"]),
    ],
)
def test_headlines_of_every_metric_are_printed(capsys, metrics, rows):
    text = printed(capsys, **metrics)
    for row in rows:
        assert row in text


def test_what_was_not_measured_is_left_out(capsys):
    assert "ROUGE" not in printed(capsys, f1=1.0)
