"""Reading comprehension on a pipeline of IPUs."""

import json
import re

import pytest

from portico.errors import InputError
from portico.experiments.experiment import build_experiment


def test_mrc_experiment_runs_on_a_pipeline(tmp_path):
    settings = {
        "_target_": "portico.ipu.mrc.IPUMRCExperiment",
        "args": {
            "max_steps": 2,
            "per_device_train_batch_size": 1,
            "per_device_eval_batch_size": 2,
            "disable_tqdm": True,
        },
        "model": {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32},
        "data": {"num_train": 60, "num_validation": 12},
        "preprocess": {"max_seq_length": 64, "doc_stride": 16, "vocab_size": 300},
        "postprocess": {"n_best_size": 5, "max_answer_length": 8},
        "strategy": {"layers_per_ipu": [0, 1, 1, 1], "gradient_accumulation_steps": 7},
    }
    metrics = build_experiment(settings, str(tmp_path)).train()
    assert "eval_f1" in metrics
    page = (tmp_path / "report.html").read_text()
    assert re.search(r'<section id="the-pipeline"[^>]*><h2[^>]*>The pipeline</h2><svg', page)
    assert json.loads((tmp_path / "ipu_config.json").read_text())["layers_per_ipu"] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("group", "key", "message"),
    [
        ("args", "fp23", r"'args.fp23' is not a setting; .* args.fp32"),
        ("args", "devices", r"'args.devices' is not a setting; use strategy.replication_factor"),
        ("strategy", "layers_per_ip", r"'strategy.layers_per_ip' is not a setting; .* strategy.layers_per_ipu"),
        ("data", "sources", r"`data.sources` cannot be used with portico.ipu.mrc.IPUMRCTrainer; leave it"),
    ],
)
def test_setting_that_ipus_do_not_take_is_refused(group, key, message, tmp_path):
    settings = {"_target_": "portico.ipu.mrc.IPUMRCExperiment", "data": {"num_train": 20, "num_validation": 8}}
    settings["preprocess"] = {"vocab_size": 300}
    settings = {**settings, group: {**settings.get(group, {}), key: [{"seed": 1}]}}
    with pytest.raises(InputError, match=message):
        build_experiment(settings, str(tmp_path)).train()
