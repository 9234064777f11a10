"""What runs of several processes predict, and what they leave behind in the process that started them."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import accelerate
import datasets
import numpy as np
import pytest
import torch.distributed
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from forked import run_in_processes
from fresh_process import environment
from models import Points, toy_arguments, toy_trainer
from parity.peers import untimed
from portico.distributed import processes, signals
from portico.distributed.processes import _cause, _pickle_error, kill_children, kill_children_on_error
from portico.errors import InputError, InputRuntimeError
from releases import forks_after_training

SPREAD = {"devices": 2, "eval_strategy": "steps", "eval_steps": 2, "num_train_epochs": 1}


class Breaks(TrainerCallback):
    """Raise in the first process, at the start of an event."""

    def __init__(self, event, error=None):
        setattr(self, event, self.break_off)
        self.error = error or RuntimeError("this run breaks off")

    def break_off(self, args, state, control, **kwargs):
        if args.process_index == 0:
            raise self.error


@pytest.mark.parametrize("where", ["refused", "on_step_end", "on_evaluate"])
@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param("ddp_fork", marks=forks_after_training),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddp_spawn", "ddp")),
    ],
)
def test_nothing_remains_of_a_run_that_fails(strategy, where, tmp_path):
    if strategy == "ddp":
        # It runs the whole script again.
        command = [sys.executable, __file__, strategy, where, str(tmp_path)]
        ended = subprocess.run(
            command, env=environment(OMP_NUM_THREADS="1"), capture_output=True, text=True, timeout=300
        )
        assert ended.returncode == 0, ended.stderr
    else:
        fail_and_train_again(strategy, where, tmp_path)


def fail_and_train_again(strategy, where, folder):
    # Lightning sets it for good, when the first run of a process needs it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    before = dict(os.environ)
    callbacks = [] if where == "refused" else [Breaks(where)]
    trainer = toy_trainer(folder, parts={"callbacks": callbacks}, strategy=strategy, **SPREAD)
    if where == "refused":
        with pytest.raises(InputError, match="Can't find a valid checkpoint"):
            trainer.train(resume_from_checkpoint=str(folder / "missing"))
    else:
        with pytest.raises(RuntimeError, match=r"^this run breaks off$"):
            trainer.train()
    assert dict(os.environ) == before
    assert not torch.distributed.is_initialized()
    if strategy == "ddp" and where != "refused":
        with pytest.raises(InputRuntimeError, match=r"ended when it failed, .* start the script with `torchrun`"):
            toy_trainer(folder, strategy=strategy, **SPREAD).train()
        assert dict(os.environ) == before
        assert not torch.distributed.is_initialized()
    again = toy_trainer(folder, num_train_epochs=1)
    assert again.args.world_size == 1
    assert again.train().global_step > 0
    if strategy != "ddp" and where == "on_step_end":
        trainer.remove_callback(Breaks)
        assert trainer.train().global_step == 3


class Unreadable(Exception):
    """Pickled without an error, but not read: the exception keeps one argument of two."""

    def __init__(self, what, number):
        super().__init__(what)


@forks_after_training
@pytest.mark.parametrize(
    ("raised", "expected", "match"),
    [(Unreadable("a name", 3), RuntimeError, "^Unreadable: a name$"), (SystemExit(0), SystemExit, "^0$")],
)
def test_what_a_worker_raises_is_raised_in_its_process(raised, expected, match, tmp_path):
    """Torch would wait forever for the result of a first worker that ends with code 0."""
    parts = {"callbacks": [Breaks("on_step_end", raised)]}
    with pytest.raises(expected, match=match) as caught:
        toy_trainer(tmp_path, parts=parts, strategy="ddp_fork", **SPREAD).train()
    assert re.match("in process 0\n.*in break_off\n", str(caught.value.__cause__), re.DOTALL)


def test_what_killed_processes_have_started_is_killed(tmp_path):
    names = ("child", "own-session")
    script = "sleep 60 & echo $! > child; setsid sleep 60 & echo $! > own-session; wait"
    with subprocess.Popen(["sh", "-c", script], cwd=tmp_path) as process:
        while not all((tmp_path / name).exists() and (tmp_path / name).read_text().strip() for name in names):
            time.sleep(0.01)
        child, own_session = ((tmp_path / name).read_text().strip() for name in names)
        while os.getsid(int(own_session)) == os.getsid(process.pid):
            time.sleep(0.01)
        processes._children.append(process)
        assert kill_children()
    while state_of(child) not in ("gone", "Z"):
        time.sleep(0.01)
    assert state_of(own_session) not in ("gone", "Z")
    os.kill(int(own_session), signal.SIGKILL)


def wait_for_a_stopped_process(folder):
    toy_trainer(folder)
    rank = torch.distributed.get_rank()
    file = folder / "pid"
    if rank == 0:
        file.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    while not (file.exists() and file.read_text()) or state_of(file.read_text()) != "T":
        time.sleep(0.01)
    # What gloo says of a process that does not come.
    with pytest.raises(RuntimeError, match="Timed out"), kill_children_on_error():
        raise RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 10000ms for recv")
    end = time.monotonic() + 20
    while state_of(file.read_text()) == "T" and time.monotonic() < end:
        time.sleep(0.01)
    is_stopped = state_of(file.read_text()) == "T"
    os.kill(int(file.read_text()), signal.SIGCONT)
    assert not is_stopped


def state_of(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "gone"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the states of processes from /proc")
def test_stopped_process_is_woken_to_end(tmp_path):
    """torchrun waits for 30 s until it kills a process that does not act on SIGTERM."""
    run_in_processes(2, wait_for_a_stopped_process, tmp_path)


class Counting(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter([Points(self.size)[index] for index in range(self.size)])


def test_small_tensors_are_gathered_together(monkeypatch):
    """Also a view of one number that was expanded, as the loss of an evaluation batch of one example."""
    monkeypatch.setattr(processes, "_gather_parts", lambda strategy, tensor: [tensor, tensor])
    tensors = [torch.ones(()).expand(1), torch.arange(3), torch.ones(2, 3).t(), torch.tensor([True])]
    for gathered, tensor in zip(processes.all_gather_several(None, tensors), tensors, strict=True):
        assert torch.equal(gathered, torch.stack([tensor, tensor]))
        assert gathered.dtype == tensor.dtype


def files(*sizes):
    """A stream of the ``datasets`` library with one file of each size."""
    points = Points(sum(sizes))
    parts = [[points[index] for index in range(sum(sizes[:n]), sum(sizes[: n + 1]))] for n in range(len(sizes))]
    return datasets.IterableDataset.from_generator(rows_of, gen_kwargs={"parts": parts})


def rows_of(parts):
    for row in chain.from_iterable(parts):
        yield {name: value.tolist() for name, value in row.items()}


READ_BY_ALL = {"accelerator_config": {"dispatch_batches": False}}
DATA = {
    **{f"{size} examples": (lambda size=size: Points(size), {}) for size in (1, 2, 5, 11)},
    **{f"stream of {size}": (lambda size=size: Counting(size), {}) for size in (1, 5, 11)},
    **{f"stream of {size}, read by all": (lambda size=size: Counting(size), READ_BY_ALL) for size in (1, 5, 11)},
    "files": (lambda: files(5, 1, 4, 2), {}),
    # Fewer files than processes.
    "one file, read by all": (lambda: files(5), READ_BY_ALL),
}


def predict_everywhere(folder):
    outcome = {}
    for name, (make, settings) in DATA.items():
        settings = {"per_device_eval_batch_size": 2, "corrections": "all", **settings}
        trainer = toy_trainer(folder / name, parts={"compute_metrics": mean_error}, **settings)
        prediction = trainer.predict(make())
        metrics = untimed({**prediction.metrics, **trainer.evaluate(make())})
        outcome[name] = (prediction.predictions, prediction.label_ids, metrics)
    rank = trainer.args.process_index
    torch.save(outcome, folder / f"{trainer.args.world_size}-{rank}.pt")


def mean_error(prediction):
    return {"error": float(np.abs(prediction.predictions - prediction.label_ids).mean())}


@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 3, 4])
def test_predictions_are_those_of_one_process(number, tmp_path):
    predict_everywhere(tmp_path)
    run_in_processes(number, predict_everywhere, tmp_path)
    one = torch.load(tmp_path / "1-0.pt", weights_only=False)
    for rank in range(number):
        several = torch.load(tmp_path / f"{number}-{rank}.pt", weights_only=False)
        for name, (predictions, labels, metrics) in one.items():
            assert several[name][0] == pytest.approx(predictions, rel=1e-6), name
            assert np.array_equal(several[name][1], labels), name
            assert several[name][2] == pytest.approx(metrics, rel=1e-6), name


def read_own_files(folder):
    # Constructors of trl wait for each other before there is a trainer.
    toy_arguments(folder)
    with accelerate.PartialState().main_process_first():
        assert torch.distributed.is_initialized()
    trainer = toy_trainer(folder, parts={"train_dataset": files(8, 4)}, max_steps=3, **READ_BY_ALL)
    with pytest.raises(InputError, match=r"their next batches have 2, 1 examples, .* leave `dispatch_batches`"):
        trainer.predict(files(5, 4, 5, 2))
    assert len(trainer.predict(files(4, 4)).predictions) == 8
    # An epoch ends after the two batches of the second process, and counts as all steps of a stream.
    assert trainer.train().global_step == 3
    assert trainer.state.epoch == pytest.approx(1 + 1 / 3)


def test_files_of_different_size_do_not_wait_for_each_other(tmp_path):
    run_in_processes(2, read_own_files, tmp_path)


def test_pickled_trainer_trains(tmp_path):
    """As in a trial of Ray Tune."""
    trainer = pickle.loads(pickle.dumps(toy_trainer(tmp_path, num_train_epochs=1)))
    assert trainer.train().global_step > 0


if __name__ == "__main__":
    fail_and_train_again(*sys.argv[1:3], Path(sys.argv[3]))


# Processes that do different things


class OnOne(TrainerCallback):
    """Set a flag, or an argument, on the second process only."""

    def __init__(self, name):
        self.name = name

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step != 2 or args.process_index != 1:
            return
        if self.name == "gradient_accumulation_steps":
            args.gradient_accumulation_steps = 3
        else:
            setattr(control, self.name, True)


def train_with(folder, name):
    def end_all(message):
        Path(folder, f"message-{os.environ['RANK']}").write_text(message)
        os._exit(1)

    processes._SECONDS_TO_AGREE, processes._end_all = 0.3, end_all
    parts = {"callbacks": [OnOne(name)], "train_dataset": Points(24)}
    toy_trainer(folder, parts=parts, ddp_timeout=60, logging_strategy="no").train()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("should_training_stop", "stops training after step 2"),
        ("should_epoch_stop", "stops the epoch after step 2"),
        ("should_evaluate", "evaluates after step 2"),
        ("gradient_accumulation_steps", "accumulates 3 batches after step 2"),
    ],
)
def test_processes_that_do_different_things_are_ended(name, told, tmp_path):
    with pytest.raises((ProcessExitedException, ProcessRaisedException)):
        run_in_processes(2, train_with, str(tmp_path), name)
    messages = [file.read_text() for file in tmp_path.glob("message-*")]
    assert any(told in message for message in messages)
    assert all("let callbacks set `control` and arguments on every process" in message for message in messages)


def use_different_lengths(folder, method):
    data = Points(24 if os.environ["RANK"] == "0" else 16)
    trainer = toy_trainer(folder, parts={"train_dataset": data, "eval_dataset": data}, ddp_timeout=60)
    # The other process fails because this one has left.
    with pytest.raises(RuntimeError) as raised:
        getattr(trainer, method)()
    Path(folder, f"message-{os.environ['RANK']}").write_text(str(raised.value))
    os._exit(0)


@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("train", r"calls `train\(\) of (8|12) steps` where another one calls"),
        ("evaluate", r"calls `evaluate\(\) of (4|6) batches` where another one calls"),
    ],
)
def test_data_of_different_lengths_are_refused_at_once(method, told, tmp_path):
    run_in_processes(2, use_different_lengths, str(tmp_path), method)
    assert any(re.search(told, file.read_text()) for file in tmp_path.glob("message-*"))


class SignalsFirst(TrainerCallback):
    """Send SIGTERM to the first process while it waits for this one, and wait until it has ended."""

    def on_train_begin(self, args, state, control, **kwargs):
        pids = [None, None]
        torch.distributed.all_gather_object(pids, os.getpid())
        self.first = pids[0]

    def on_step_end(self, args, state, control, **kwargs):
        if args.process_index == 1 and state.global_step == 2:
            time.sleep(0.5)
            os.kill(self.first, signal.SIGTERM)
            while state_of(self.first) not in ("Z", "gone"):
                time.sleep(0.1)
            os._exit(0)


def train_until_signalled(folder):
    signals._SECONDS_TO_NEXT_BATCH = 0.5
    toy_trainer(folder, parts={"callbacks": [SignalsFirst()], "train_dataset": Points(24)}).train()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the states of processes from /proc")
def test_process_that_waits_for_another_ends_in_time_after_sigterm(tmp_path):
    with pytest.raises(ProcessExitedException) as raised:
        run_in_processes(2, train_until_signalled, str(tmp_path))
    assert (raised.value.error_index, raised.value.exit_code) == (0, 128 + signal.SIGTERM)


def test_a_killed_worker_is_named_and_not_the_others_that_the_launcher_then_terminates(tmp_path):
    terminated = SystemExit(128 + signal.SIGTERM)
    (tmp_path / "error-1").write_bytes(_pickle_error(terminated, "1"))
    killed, other = SimpleNamespace(exitcode=-signal.SIGKILL), SimpleNamespace(exitcode=1)
    error, _ = _cause([killed, other], tmp_path, set())
    assert str(error).startswith("Process 0 ended with exit code -9; ")
    # The signal of a scheduler, which is the cause itself.
    error, origin = _cause([SimpleNamespace(exitcode=-signal.SIGTERM), other], tmp_path, set())
    assert (type(error), error.code) == (SystemExit, terminated.code)
    assert "in process 1" in str(origin)
