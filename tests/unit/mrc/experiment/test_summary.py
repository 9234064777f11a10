import pytest

from portico.mrc.experiment.summary import print_summary


def printed(capsys, **metrics):
    metrics = {f"eval_{name}": value for name, value in metrics.items()}
    print_summary(metrics, title="Run", files={"Report": "report.html"}, seconds=61.0)
    return " ".join(capsys.readouterr().out.replace("│", " ").replace("┃", " ").split())


@pytest.mark.parametrize(
    ("metrics", "rows"),
    [
        ({"exact_match": 50.0, "f1": 62.25}, ["F1 62.2", "Exact match 50.0"]),
        (
            {"exact": 1.0, "NoAns_exact": 2.0, "total": 1234},
            ["Exact match 1.0", "there is none 2.0", "Questions 1,234"],
        ),
        ({"best_f1": 70.0, "pr_f1_ap": 81.0}, ["best threshold 70.0", "Average precision of F1 81.0"]),
        ({"avg_passage_f1": 0.5, "avg_minimal_f1": 0.25}, ["Passage F1, mean of languages 50.0", "languages 25.0"]),
        (
            {"long_answer_best_f1": 0.75, "short_answer_best_f1": 0.5, "long_answer_n": 9},
            ["threshold 75.0", "threshold 50.0"],
        ),
        ({"rouge1": 30.0, "kilt_rougeL": 20.0}, ["ROUGE-1 30.0", "ROUGE-L as KILT counts 20.0"]),
        ({"loss": 0.5}, ["Loss 0.500", "Time of the whole run 1 min 1 s", "Report: report.html"]),
    ],
)
def test_headlines_of_every_metric_are_printed(capsys, metrics, rows):
    text = printed(capsys, **metrics)
    for row in rows:
        assert row in text


def test_what_was_not_measured_is_left_out(capsys):
    assert "ROUGE" not in printed(capsys, f1=1.0)
