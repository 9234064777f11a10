"""Two processes answer as one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("process_evaluation.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def evaluate(folder, mode, launcher=()):
    command = [sys.executable, *launcher, str(SCRIPT), str(folder), mode]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=environment, timeout=600, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    return {path.name: json.loads(path.read_text()) for path in Path(folder).glob("*.json")}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["portico", "hf"])
def test_two_processes_give_the_answers_of_one(tmp_path, mode):
    one, two = evaluate(tmp_path / "one", mode), evaluate(tmp_path / "two", mode, TORCHRUN)
    assert set(one) == set(two) >= {"eval_predictions.json", "answer_calibration.json", "eval_results.json"}
    assert len(two["eval_predictions.json"]) == 45
    assert two["eval_predictions.json"] == one["eval_predictions.json"]
    for example_id, records in one["eval_nbest_predictions.json"].items():
        others = two["eval_nbest_predictions.json"][example_id]
        assert [record["text"] for record in others] == [record["text"] for record in records]
    assert two["eval_results.json"]["eval_f1"] == one["eval_results.json"]["eval_f1"]
