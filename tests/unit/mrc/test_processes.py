"""Several processes answer like one: this file is also the script that each process runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from portico import MRCTrainer
from portico.mrc import SpanPostProcessing
from portico.mrc.corpus import generate
from unit.mrc.small_readers import featurizer, make_trainer, reader

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node"]


def evaluate_in_processes(folder, mode, launcher=()):
    command = [sys.executable, *launcher, __file__, str(folder), mode]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(command, env=environment, timeout=600, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    written = {path.name: json.loads(path.read_text()) for path in Path(folder).glob("*.json")}
    for name in ("eval_results.json", "all_results.json"):
        for time in ("eval_runtime", "eval_model_preparation_time"):
            written[name].pop(time, None)
    return written


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["portico", "hf"])
def test_processes_return_the_same_answers_as_one(tmp_path, mode):
    """The 45 questions have 62 windows: those of one question are on different processes."""
    one = evaluate_in_processes(tmp_path / "one", mode)
    assert one.keys() >= {"eval_predictions.json", "eval_nbest_predictions.json", "answer_calibration.json"}
    assert len(one["eval_predictions.json"]) == 45
    for number in (2, 3, 4):
        assert evaluate_in_processes(tmp_path / str(number), mode, [*TORCHRUN, str(number)]) == one


def evaluate(folder, mode):
    examples = generate(num_train=8, num_validation=45, seed=1)[1]
    made = reader(examples)
    trainer = make_trainer(
        MRCTrainer,
        made,
        folder,
        arguments={"ddp_backend": "gloo"},
        eval_dataset=featurizer(made.tokenizer, pad_to_max_length=True).eval_features(examples),
        eval_examples=examples,
        post_process_function=SpanPostProcessing(version_2_with_negative=True, mode=mode, calibrate=True),
    )
    trainer.save_metrics("eval", {key: value for key, value in trainer.evaluate().items() if "per_second" not in key})


if __name__ == "__main__":
    evaluate(*sys.argv[1:])
