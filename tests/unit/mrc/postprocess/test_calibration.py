import numpy as np
import pytest

from portico.errors import InputError
from portico.mrc.postprocess.calibration import AnswerCalibration, best_null_threshold, fit_calibration
from portico.mrc.postprocess.ranking import RankedSpans, Spans, span_probabilities


def make_ranked(scores_EN):
    score_N = scores_EN.reshape(-1)
    places = np.zeros((len(score_N), 3), np.int32)
    spans = Spans(np.zeros((len(score_N), 2), np.int32), places, score_N, score_N, score_N)
    return RankedSpans(spans, np.arange(len(scores_EN) + 1) * scores_EN.shape[1])


def sharpened(sharpness, num_examples=4000, seed=0):
    """Return scores that are `sharpness` times too sure, and which span of each example is right."""
    rng = np.random.default_rng(seed)
    scores_EN = -np.sort(-rng.normal(size=(num_examples, 5)), axis=1) * 2
    true_EN = np.exp(scores_EN) / np.exp(scores_EN).sum(axis=1, keepdims=True)
    right_E = np.array([rng.choice(5, p=row) for row in true_EN])
    return make_ranked(scores_EN * sharpness), np.eye(5, dtype=bool)[right_E].reshape(-1), true_EN


def test_calibrated_probabilities_are_the_frequencies_of_right_spans():
    ranked, right_N, true_EN = sharpened(3.0)
    calibration = fit_calibration(ranked, right_N, ranked.row_starts[:-1])
    assert calibration.temperature == pytest.approx(3.0, rel=0.1)
    probability_N = calibration.calibrated(span_probabilities(ranked, temperature=calibration.temperature))
    best_E = probability_N.reshape(true_EN.shape)[:, 0]
    assert np.abs(best_E - true_EN[:, 0]).max() < 0.05
    plain_E = span_probabilities(ranked).reshape(true_EN.shape)[:, 0]
    assert np.abs(plain_E - true_EN[:, 0]).max() > 0.2


@pytest.mark.parametrize("right", [1, 40, 80])
def test_equal_scores_become_the_share_of_right_spans(right):
    ranked = make_ranked(np.zeros((80, 4)))
    right_N = np.zeros((80, 4), bool)
    right_N[:right, 0] = True
    calibration = fit_calibration(ranked, right_N.reshape(-1), ranked.row_starts[:-1])
    assert calibration.calibrated(span_probabilities(ranked))[0] == pytest.approx(right / 80, abs=0.03)


def test_default_calibration_is_the_identity():
    probability_N = np.array([0.0, 0.3, 1.0])
    assert AnswerCalibration().calibrated(probability_N).tolist() == probability_N.tolist()
    sharp_N = AnswerCalibration(slope=1e3).calibrated(probability_N)
    assert sharp_N[[0, 2]].tolist() == [0.0, 1.0]


def test_calibration_needs_a_right_answer():
    ranked = make_ranked(np.zeros((3, 4)))
    with pytest.raises(InputError, match="None of the candidates of any question is right"):
        fit_calibration(ranked, np.zeros(12, bool), ranked.row_starts[:-1])


@pytest.mark.parametrize("seed", range(20))
def test_best_null_threshold_beats_all_others(seed):
    rng = np.random.default_rng(seed)
    odds_E = np.round(rng.normal(size=12), seed % 2)
    answered_E, not_E = rng.random((2, 12))

    def quality(threshold):
        return np.where(odds_E > threshold, not_E, answered_E).sum()

    best = max(quality(threshold) for threshold in [-np.inf, *odds_E])
    assert quality(best_null_threshold(odds_E, answered_E, not_E)) == pytest.approx(best)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[" * 100_000, "recursion"),
        ("[]", "must be a mapping"),
        ('{"warmth": 1}', ""),
        ('{"temperature": "1"}', "`temperature` is '1', not a number"),
        ('{"temperature": 0}', "`temperature` is 0, not above 0"),
        ('{"slope": NaN}', "`slope` is 'nan', not a number"),
        ('{"slope": true}', "`slope` is 'True', not a number"),
        ('{"intercept": null}', "`intercept` is 'None', not a number"),
        ('{"null_score_diff_threshold": NaN}', "`null_score_diff_threshold` is 'nan', not a number"),
    ],
)
def test_file_that_holds_no_calibration_is_refused(tmp_path, text, what):
    (tmp_path / "answer_calibration.json").write_text(text)
    with pytest.raises(InputError, match=f"is not a valid answer calibration .*{what}"):
        AnswerCalibration.load(tmp_path)


def test_threshold_may_be_infinite_and_fields_may_be_missing(tmp_path):
    AnswerCalibration(null_score_diff_threshold=float("inf")).save(tmp_path)
    assert AnswerCalibration.load(tmp_path) == AnswerCalibration(null_score_diff_threshold=float("inf"))
    (tmp_path / "answer_calibration.json").write_text('{"temperature": 2.0}')
    assert AnswerCalibration.load(tmp_path) == AnswerCalibration(temperature=2.0)
