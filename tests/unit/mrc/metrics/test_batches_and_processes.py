"""Metrics summed over batches and processes equal those of the whole set."""

import multiprocessing
import pickle
import warnings

import pytest
import torch.distributed
from torchmetrics import MetricCollection

from portico.mrc import Mlqa, Mrqa, NqF1, Rouge, SquadV1, SquadV2, TydiF1
from portico.mrc.experiment import scores_of_texts
from portico.mrc.metrics.spans import SpanScores

METRICS = {
    "squad": SquadV1,
    "squad_v2": lambda: SquadV2(average_precision=True),
    "mlqa": lambda: Mlqa("de"),
    "mrqa": Mrqa,
    "rouge": lambda: Rouge(["kilt_rougeL", "rouge1"]),
    "tydi": TydiF1,
    "nq": NqF1,
}
LANGUAGES = ("finnish", "thai", "中文")


def text_records(i, *, has_answer=True):
    texts = [f"old mill {i}", "river"] if has_answer else []
    prediction = {"id": str(i), "prediction_text": ["", "mill", "river", "the old mill 3"][i % 4]}
    return [{**prediction, "no_answer_probability": i % 3 / 4}], [{"id": str(i), "answers": {"text": texts}}]


def span_records(i):
    gold = {
        "example_id": str(i),
        "language": LANGUAGES[i % 3],
        "start_position": i % 4 * 5 - 5 if i % 4 else -1,
        "end_position": i % 4 * 5 + 2 if i % 4 else -1,
        "passage_index": i % 3 - 1,
        "yes_no_answer": "NONE",
    }
    predicted = {**gold, "start_position": 1, "end_position": 6, "passage_index": 1, "confidence_score": i % 5 / 3}
    return [predicted], [[gold, gold]]


def records(name, i):
    if name in ("tydi", "nq"):
        return span_records(i)
    return text_records(i, has_answer=name != "squad_v2" or i % 3 > 0)


def whole(name, indices=range(12)):
    metric = METRICS[name]()
    pairs = [records(name, i) for i in indices]
    metric.update([p for predictions, _ in pairs for p in predictions], [r for _, refs in pairs for r in refs])
    return metric.compute()


@pytest.mark.parametrize("name", METRICS)
def test_batches_give_the_metrics_of_the_whole(name):
    metric = METRICS[name]()
    for _ in range(2):  # the second time after a reset
        for i in range(12):
            metric.update(*records(name, i))
        assert metric.compute() == whole(name)
        metric.reset()
    assert any(0 < score < 100 for score in whole(name).values())


@pytest.mark.parametrize("name", METRICS)
def test_states_can_be_merged_and_pickled(name):
    first, second = METRICS[name](), METRICS[name]()
    for i in range(12):
        (first if i < 5 else second).update(*records(name, i))
    together = pickle.loads(pickle.dumps(first))
    together.merge_state(second)
    assert together.compute() == pytest.approx(whole(name), abs=1e-12)


def test_metrics_work_in_a_collection():
    metrics = MetricCollection({"squad": SquadV1(), "rouge": Rouge(["kilt_rougeL"])})
    metrics.update(*text_records(3))
    assert set(metrics.compute()) == {"exact_match", "f1", "kilt_rougeL", "gen_len"}


@pytest.mark.parametrize("metric", [TydiF1, NqF1])
def test_scores_of_all_questions_do_not_wait_for_other_processes(metric):
    """The report of a run is written by one of its processes."""

    def wait(*_, **__):
        raise AssertionError("the other processes do not come")

    examples = [{"id": "a", "language": "thai", "answers": {"text": ["mill"], "answer_start": [3]}}]
    scores = SpanScores(metric(distributed_available_fn=lambda: True, dist_sync_fn=wait), examples)
    assert set(scores_of_texts(scores, examples).values()) <= {0.0, 1.0}


def _process(rank, folder, splits, queue):
    # A process without questions computes without an update, of which torchmetrics warns.
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for split, shares in splits.items():
        for name in METRICS:
            metric = METRICS[name]()
            for i in shares[rank]:
                metric.update(*records(name, i))
            results[split, name] = metric.compute()
    torch.distributed.destroy_process_group()
    queue.put((rank, results))


def test_two_processes_give_the_metrics_of_one(tmp_path):
    """Also where one of them has no question, and where their shares differ in size and languages."""
    splits = {"even": (range(6), range(6, 12)), "uneven": (range(11), range(11, 12)), "all": (range(12), range(0))}
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    processes = [context.Process(target=_process, args=(rank, tmp_path, splits, queue)) for rank in range(2)]
    for process in processes:
        process.start()
    results = dict(queue.get(timeout=120) for _ in processes)
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    for split in splits:
        for name in METRICS:
            assert results[0][split, name] == results[1][split, name] == pytest.approx(whole(name), abs=1e-12)
