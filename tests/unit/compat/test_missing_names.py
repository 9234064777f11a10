"""A private name that moves in another library may break the feature that uses it, never the import."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from portico.compat import transformers as hf_compat
from releases import since_transformers

# What every run computes with: without these, the first run says which releases have them.
NEEDED_TO_TRAIN = {
    "AcceleratorConfig": "the settings of the loaders",
    "CallbackHandler": "the events",
    "DefaultFlowCallback": "when to log, evaluate and save",
    "EvalLoopOutput": "the result of an evaluation",
    "LOSS_MAPPING": "whether the loss shifts its labels, which are counted",
    "OptimizerContext": "the table of optimizers, as the next two",
    "_OPTIMIZER_HANDLERS": "",
    "_parse_optim_args": "",
    "RemoveColumnsCollator": "columns that the model does not take",
    "TrainOutput": "the result of a training",
    "TrainerMemoryTracker": "the metrics of `skip_memory_metrics=False`",
    "can_return_loss": "whether an evaluation has a loss",
    "denumpify_detensorize": "metrics as plain numbers",
    "find_batch_size": "how many examples a batch has",
    "find_labels": "which inputs are labels",
    "get_model_param_count": "the log at the start",
    "get_parameter_names": "which parameters decay",
    "has_length": "whether data has a length",
    "is_optimizer_factory": "how an optimizer is made",
    "speed_metrics": "how fast a run is",
    "unwrap_peft_model": "the model below adapters",
}
# But for the base class of the training arguments, which transformers exports.
NAMES = sorted(set(hf_compat._HOMES) - {"HFTrainingArguments", "NewestArguments"})
ACCELERATE = [
    "accelerate.state:PartialState._shared_state",
    "accelerate.state:AcceleratorState._shared_state",
    "accelerate.state:GradientState._shared_state",
    "accelerate.utils:TorchDynamoPlugin",
]


def outcomes_without(*arguments):
    """Return how far a run came without the names of each argument, and the error that ended it."""
    script = Path(__file__).with_name("missing_names.py")
    # As in a user's process: nothing else has imported these modules.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    run = subprocess.run(
        [sys.executable, str(script), *arguments], env=variables, capture_output=True, text=True, check=True
    )
    return {name: (reached, error) for name, reached, error in map(json.loads, run.stdout.splitlines())}


@pytest.fixture(scope="module")
def outcomes():
    return outcomes_without(*NAMES, *ACCELERATE)


def check_refusal(reached, error, names):
    assert reached == "import"
    assert any(f"needs `{hf_compat._HOMES[name][1]}` of `{hf_compat._HOMES[name][0]}`" in error for name in names)
    assert (
        f"install transformers {hf_compat.LOWEST_VERSION} to {hf_compat.CHECKED_VERSION}, or a newer portico" in error
    )


def test_runs_without_names():
    """All names at once that a run does not need, and all that it needs; the next tests take one after the other."""
    others = ",".join([*sorted(set(NAMES) - {*NEEDED_TO_TRAIN}), *ACCELERATE])
    needed = ",".join(NEEDED_TO_TRAIN)
    outcomes = outcomes_without(others, needed)
    assert outcomes[others] == ("saving", "")
    check_refusal(*outcomes[needed], NEEDED_TO_TRAIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_run_without_name_of_transformers(outcomes, name):
    reached, error = outcomes[name]
    if name in NEEDED_TO_TRAIN:
        check_refusal(reached, error, [name])
    else:
        assert reached == "saving", error


@pytest.mark.slow
@pytest.mark.parametrize("name", ACCELERATE)
def test_run_without_name_of_accelerate(outcomes, name):
    reached, error = outcomes[name]
    assert reached == "saving", error


@since_transformers("5.10")
@pytest.mark.parametrize("name", [*NEEDED_TO_TRAIN, "HFTrainingArguments"])
def test_name_that_a_run_needs_is_found_where_it_is_used(monkeypatch, name):
    home, _ = hf_compat._HOMES[name]
    found, real = getattr(hf_compat, name), hf_compat.import_module
    monkeypatch.setattr(hf_compat, "import_module", lambda module: object() if module == home else real(module))
    assert hf_compat._look_up(name) is found
