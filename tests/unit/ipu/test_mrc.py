"""Reading comprehension on a pipeline of IPUs."""

import json
import re

from portico.configured_run import RunSettings
from portico.ipu.mrc import run_mrc_ipu, valid_keys


def test_mrc_experiment_runs_on_a_pipeline(tmp_path):
    settings = RunSettings(
        args={"max_steps": 2, "per_device_train_batch_size": 1, "per_device_eval_batch_size": 2, "disable_tqdm": True},
        model={"name_or_path": None, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32},
        data={"train_file": None, "validation_file": None, "num_train": 60, "num_validation": 12, "seed": 0},
        preprocess={"max_seq_length": 64, "doc_stride": 16, "vocab_size": 300},
        postprocess={"n_best_size": 5, "max_answer_length": 8, "null_score_diff_threshold": 0.0},
        metric={"version_2_with_negative": None},
        strategy={"layers_per_ipu": [0, 1, 1, 1], "gradient_accumulation_steps": 7},
        output_dir=str(tmp_path),
    )
    metrics = run_mrc_ipu(settings)
    assert "eval_f1" in metrics
    page = (tmp_path / "report.html").read_text()
    assert re.search(r'<section id="the-pipeline"[^>]*><h2[^>]*>The pipeline</h2><svg', page)
    assert json.loads((tmp_path / "ipu_config.json").read_text())["layers_per_ipu"] == [0, 1, 1, 1]
    assert {"fp32", "loss_scaling", "n_ipu"} <= set(valid_keys()["args"])
    assert "layers_per_ipu" in valid_keys()["strategy"]
