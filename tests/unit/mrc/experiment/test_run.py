import json
from pathlib import Path

import pytest
from transformers import BertForQuestionAnswering, EarlyStoppingCallback

from portico import InputError
from portico.configured_run import RunSettings
from portico.mrc.corpus import generate, to_squad
from portico.mrc.experiment.run import run_mrc, valid_keys
from portico.mrc.report.run_folder import read_run

SETTINGS = {
    "args": {
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "disable_tqdm": True,
        "report_to": "none",
        "use_cpu": True,
        "save_strategy": "no",
    },
    "model": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    "data": {"num_train": 32, "num_validation": 24, "seed": 0},
    "preprocess": {"max_seq_length": 128, "doc_stride": 32, "vocab_size": 400},
    "postprocess": {},
    "metric": {},
    "strategy": {},
    "callbacks": [],
    "logger": [],
}


def settings(tmp_path, **changes):
    merged = {group: {**SETTINGS[group], **changes.get(group, {})} for group in SETTINGS if group in ("args", "model")}
    if "name_or_path" in merged["model"]:
        merged["model"] = changes["model"]
    merged |= {group: changes.get(group, SETTINGS[group]) for group in ("callbacks", "logger")}
    rest = [group for group in SETTINGS if group not in merged]
    merged |= {group: {**SETTINGS[group], **changes.get(group, {})} for group in rest}
    return {**merged, "output_dir": str(tmp_path / "run")}


@pytest.fixture(scope="module")
def squad_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squad")
    for name, part in zip(("train", "dev"), generate(num_train=24, num_validation=16, seed=3), strict=True):
        (folder / f"{name}.json").write_text(json.dumps(to_squad(part)), encoding="utf-8")
    return {"train_file": str(folder / "train.json"), "validation_file": str(folder / "dev.json")}


def test_run_writes_everything_and_returns_the_metrics(tmp_path, capsys):
    metrics = run_mrc(RunSettings(**settings(tmp_path)))
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


def test_run_on_files_continues_from_the_model_of_another(tmp_path, squad_files):
    run_mrc(RunSettings(**settings(tmp_path / "first")))
    model = str(tmp_path / "first" / "run")
    metrics = run_mrc(RunSettings(**settings(tmp_path / "second", data=squad_files, model={"name_or_path": model})))
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
        run_mrc(RunSettings(**settings(tmp_path / "strict", data=data)))
    run_mrc(RunSettings(**settings(tmp_path / "lenient", data={**data, "skip_invalid": True})))
    assert "left out 1 unusable record" in caplog.text


def test_answerable_data_is_scored_by_squad_1(tmp_path):
    train, dev = (
        [e for e in part if e["answers"]["text"]] for part in generate(num_train=40, num_validation=40, seed=3)
    )
    files = {}
    for name, part in (("train_file", train), ("validation_file", dev)):
        files[name] = str(tmp_path / f"{name}.json")
        (tmp_path / f"{name}.json").write_text(json.dumps(to_squad(part)), encoding="utf-8")
    metrics = run_mrc(RunSettings(**settings(tmp_path, data=files)))
    assert {"eval_exact_match", "eval_f1"} <= set(metrics)
    assert "eval_NoAns_f1" not in metrics


def test_resumed_run_goes_on_from_its_checkpoint(tmp_path):
    arguments = {"save_strategy": "steps", "save_steps": 1}
    run_mrc(RunSettings(**settings(tmp_path, args=arguments)))
    again = settings(tmp_path, args={**arguments, "max_steps": 4, "resume_from_checkpoint": True})
    metrics = run_mrc(RunSettings(**again))
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert state["global_step"] == 4
    assert metrics["epoch"] > 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"train_file": "a.json"}}, r"`data.train_file=a.json` came without `data.validation_file`"),
        ({"data": {"train_file": "no.json", "validation_file": "no.json"}}, r"no\.json"),
        ({"data": {"train_file": [], "validation_file": "a.json"}}, r"`data.train_file=\[\]` names no file; set it"),
        ({"postprocess": {"search": "all"}}, r"`search=all` is no way to look for spans; use one of top, exhaustive"),
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
            {"metric": {"name": "tydi"}},
            r"what `metric.passage_non_null_threshold=2` and `metric.minimal.*=2` annotators agree on, but no "
            r"question to evaluate on has more than 1; set each to 1",
        ),
        ({"data": {"max_train_samples": 0}}, r"`data.max_train_samples=0` leaves no example"),
        ({"data": {"max_train_samples": "few"}}, r"`data.max_train_samples=few` cannot be used; .* integer, or null"),
        ({"data": {"num_train": "many"}}, r"`data.num_train=many` cannot be used"),
        ({"preprocess": {"vocab_size": "abc"}}, r"`preprocess.vocab_size=abc` cannot be used"),
        ({"postprocess": {"n_best_size": 0}}, r"`postprocess.n_best_size=0` cannot be used"),
        (
            {"metric": {"version_2_with_negative": "maybe"}},
            r"version_2_with_negative=maybe` .* true or false, or null",
        ),
        ({"args": {"learning_rate": "abc"}}, r"`args.learning_rate=abc` cannot be used; set it to a number of 0"),
        ({"args": {"max_steps": 1.5}}, r"`args.max_steps=1.5` cannot be used; set it to an integer"),
        ({"args": {"deepspeed": "zero.json"}}, r"These training arguments cannot be used: .*deepspeed"),
        (
            {"callbacks": [EarlyStoppingCallback()]},
            r"`args.eval_strategy=no` makes none .* `callbacks=early_stopping`",
        ),
        (
            {"callbacks": [EarlyStoppingCallback()], "args": {"eval_strategy": "epoch"}},
            r"no metric was chosen; set `args.metric_for_best_model`",
        ),
        ({"model": {"name_or_path": "/nowhere"}}, r"`model.name_or_path=/nowhere` gives no model: .* no such folder"),
        (
            {"model": {"name_or_path": "/nowhere", "hidden_size": 64}},
            r"`model.hidden_size=64` would shape a new small BERT, but `model.name_or_path=/nowhere` loads",
        ),
        (
            {"model": {"num_attention_heads": 7}},
            r"No BERT can be made with .*`model.num_attention_heads=7`.* not a multiple",
        ),
        (
            {"model": {"hidden_size": "big"}},
            r"No BERT can be made with `model.hidden_size=big`.* expected int, got str",
        ),
        ({"args": {"eval_strategy": "sometimes"}}, r"These training arguments cannot be used: .*sometimes"),
        ({"preprocess": {"doc_stride": 128}}, r"doc_stride=128 must be .* below max_seq_length=128"),
        (
            {"preprocess": {"max_seq_length": 256}, "model": {"max_position_embeddings": 64}},
            r"`preprocess.max_seq_length=256` is more than the model takes \(64 tokens\)",
        ),
    ],
)
def test_bad_settings_are_refused_before_training(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        run_mrc(RunSettings(**settings(tmp_path, **changes)))


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
    train, dev = generate(num_train=24, num_validation=16, seed=3)
    data = {
        name: write_lines(tmp_path / f"{name}.jsonl", [in_base_schema(one, place=n % 2) for n, one in enumerate(part)])
        for name, part in (("train_file", train), ("validation_file", dev))
    }
    assert run_mrc(RunSettings(**settings(tmp_path, data=data)))["eval_total"] == 16
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
    with pytest.raises(InputError, match=r"The answer 'Ana' of example 'a' has no known position .*mrc_fid"):
        run_mrc(RunSettings(**settings(tmp_path, data=data)))


def test_valid_keys_name_every_group_with_fixed_keys():
    keys = valid_keys()
    assert {"learning_rate", "seed"} <= set(keys["args"])
    assert not {"output_dir", "strategy"} & set(keys["args"])
    assert {"name_or_path", "hidden_size"} <= set(keys["model"])
    assert "train_file" in keys["data"]
