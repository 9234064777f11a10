"""Runs with faults: ``faulty_runs.py LIBRARY`` reads jobs as lines of JSON, forks a process for each, prints outcomes.

A fork of a process that has imported everything starts at once, so hundreds of runs can be killed in minutes. LIBRARY
is ``faulty_calls.c``, compiled and preloaded: torch and safetensors write from C++ and Rust, where no hook of Python
sees it.
"""

import ctypes
import gc
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file
from torch.utils.data import IterableDataset
from transformers import TrainerCallback

from fresh_process import environment
from models import Sequences, pad_everything, tiny_gpt2, toy_arguments, toy_trainer
from portico import MRCTrainer, Trainer
from portico.checkpoint.manifest import steps_of_checkpoints
from portico.cli import main
from portico.distributed.model_parallel import full_tensor
from small_experiments import KINDS, LAUNCHED, TOPICS
from unit.gradient_descent.plain_training import trainer_with_everything
from unit.mrc.small_readers import SHAPE, featurized, make_trainer, reader, source

CALLS = ("open", "write", "fsync", "rename", "unlink")
ACTIONS = ("count", "kill", "fill")
SAVING = {"save_strategy": "steps", "save_steps": 2, "save_total_limit": 2, "eval_strategy": "steps", "eval_steps": 2}
# What a run has left, next to its folder so that no fault hits it.
OUTCOME = "outcome.json"
LIMIT = 900  # seconds for a run, which takes 10 where nothing else runs


# ---- The runs: each resumes if it finds a checkpoint, and returns its final weights ----


class Steps(TrainerCallback):
    """Notes the step at which a run begins, and each that it has saved."""

    def __init__(self, folder: Path) -> None:
        self.file = folder.parent / "steps"

    def on_train_begin(self, args, state, control, **kwargs):
        self.note(f"began {state.global_step}")

    def on_save(self, args, state, control, **kwargs):
        self.note(f"saved {state.global_step}")

    def note(self, line):
        with self.file.open("a") as file:
            print(line, file=file)


def trained(trainer: Trainer, folder: Path) -> dict[str, torch.Tensor]:
    trainer.add_callback(Steps(folder))
    trainer.train(resume_from_checkpoint=any(folder.glob("checkpoint-*")))
    return {name: full_tensor(tensor) for name, tensor in trainer.model.state_dict().items()}


def language_model(folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    args = toy_arguments(folder, max_steps=8, **SAVING, **options)
    data = {"train_dataset": Sequences(19), "eval_dataset": Sequences(5, seed=2), "data_collator": pad_everything}
    return trained(Trainer(tiny_gpt2(), args, **data), folder)


def written_in_background(folder: Path) -> dict[str, torch.Tensor]:
    return language_model(folder, async_save=True)


def sharded(folder: Path) -> dict[str, torch.Tensor]:
    return language_model(folder, fsdp=True, ddp_timeout=60)


def reading(folder: Path) -> dict[str, torch.Tensor]:
    sets = source()
    made = reader(sets.train)
    features = featurized(sets, made.tokenizer)
    data = {"train_dataset": features.train, "eval_dataset": features.validation, "eval_examples": sets.validation}
    return trained(make_trainer(MRCTrainer, made, folder, arguments={"max_steps": 8, **SAVING}, **data), folder)


def descent(folder: Path) -> dict[str, torch.Tensor]:
    trainer = trainer_with_everything(folder)
    trainer.train()
    return dict(trainer.model.state_dict())


def run_command(folder: Path) -> None:
    """Run ``portico train`` next to a folder, with the arguments that are set."""
    # Lightning starts the other processes of a run by the name of this module.
    sys.modules["__main__"].__spec__ = find_spec("portico.__main__")
    os.chdir(folder.parent)
    try:
        main(sys.argv[2:])
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"exit code {end.code}") from end


def sweep(folder: Path) -> dict[str, torch.Tensor]:
    """Run a command that resumes a sweep if it finds one; return the weights of its two jobs."""
    small = [f"model.{name}={size}" for name, size in SHAPE.items()]
    steps = ["args.max_steps=4", "args.save_strategy=steps", "args.save_steps=2", "args.use_cpu=true"]
    fixed = ["+experiment=mrc", "debug=default", *small, *steps, f"hydra.sweep.dir={folder}"]
    sys.argv = ["portico", "train", "-m", "args.seed=7,8", *fixed]
    run_command(folder)
    files = sorted(folder.glob("*/model.safetensors"))
    return {f"{file.parent.name}.{name}": tensor for file in files for name, tensor in load_file(file).items()}


def experiment(folder: Path, *, kind: str) -> dict[str, torch.Tensor]:
    """Run an experiment of ``conf`` as the command does; return the weights of its best checkpoint and its last."""
    resumed = ["args.resume_from_checkpoint=true"] if any(folder.glob("checkpoint-*")) else ["overwrite=true"]
    sys.argv = ["portico", "train", *(KINDS | LAUNCHED)[kind], f"paths.output_dir={folder}", *resumed]
    run_command(folder)
    step, last = max((step, path) for path, step in steps_of_checkpoints(folder).items())
    weights = {
        f"{name}-{place}": tensor
        for place in (folder, last)
        for name, tensor in load_file(place / "model.safetensors").items()
    }
    return {**weights, "step": torch.tensor(step)}


class Streamed(IterableDataset):
    """Records without a length, which a run of several passes reads again and again."""

    def __iter__(self):
        return iter([Sequences(19)[index] for index in range(19)])


def streamed(folder: Path) -> dict[str, torch.Tensor]:
    corrections = ["resume_by_examples", "resume_order", "resume_at_max_steps"]
    args = toy_arguments(folder, max_steps=24, per_device_train_batch_size=2, corrections=corrections, **SAVING)
    data = {"train_dataset": Streamed(), "eval_dataset": Sequences(5, seed=2), "data_collator": pad_everything}
    return trained(Trainer(tiny_gpt2(), args, **data), folder)


def replicated(folder: Path, **options: Any) -> dict[str, torch.Tensor]:
    """Train in two processes, which each have the whole model."""
    args = toy_arguments(
        folder, num_train_epochs=3, per_device_train_batch_size=2, ddp_timeout=60, **SAVING, **options
    )
    data = {"train_dataset": Sequences(19), "eval_dataset": Sequences(5, seed=2), "data_collator": pad_everything}
    return trained(Trainer(tiny_gpt2(), args, **data), folder)


def topics(folder: Path) -> dict[str, torch.Tensor]:
    """Run the experiment of AllenNLP's trainer as the command does; return its best weights and its last."""
    started = next(folder.glob("training_state_*"), None) is not None
    sys.argv = ["portico", "train", *TOPICS, f"paths.output_dir={folder}"]
    sys.argv.append("args.resume_from_checkpoint=true" if started else "overwrite=true")
    run_command(folder)
    last = max(folder.glob("model_state_e*.th"), key=lambda file: [*map(int, re.findall(r"\d+", file.name))])
    weights = {
        f"{name}-{place.name}": tensor
        for place in (folder / "best.th", last)
        for name, tensor in torch.load(place, weights_only=True).items()
    }
    return weights


def cycles(folder: Path, seconds: float) -> None:
    """Train, evaluate, save and resume over and over; write down what the process holds after each."""
    process = psutil.Process()
    held = []
    end = time.monotonic() + seconds
    gc.freeze()
    while time.monotonic() < end:
        for max_steps in (2, 4):
            trainer = toy_trainer(folder, **SAVING, max_steps=max_steps)
            trainer.train(resume_from_checkpoint=max_steps > 2)
            trainer.evaluate()
            trainer.save_model(str(folder / "saved"))
        files = sum(len(names) for _, _, names in os.walk(folder.parent))
        # Garbage, and what the allocator keeps for later, is not held.
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        held.append([process.memory_info().rss, process.num_fds(), threading.active_count(), files])
        for path in folder.glob("checkpoint-*/*"):
            path.unlink()
        for path in folder.glob("checkpoint-*"):
            path.rmdir()
    (folder.parent / "held.json").write_text(json.dumps(held))


RUNS = {
    "trainer": language_model,
    "async_save": written_in_background,
    "reading": reading,
    "descent": descent,
    "fsdp": sharded,
    "sweep": sweep,
}
# Each trains for three epochs.
EPOCHS = {
    "stream": streamed,
    "torchrun": replicated,
    "ddp_fork": partial(replicated, strategy="ddp_fork", devices=2),
    "launched": partial(experiment, kind="launched"),
    "gradient_descent": topics,
    **{kind: partial(experiment, kind=kind) for kind in KINDS},
}
PROCESSES = {"fsdp": 2, "torchrun": 2}
LAUNCHING = ("ddp_fork",)
"""Kinds that fork their processes themselves, so that a kill hits one of these and ends the others with an error."""


# ---- Their processes ----


def run(job: dict[str, Any], library: ctypes.CDLL, rank: int) -> None:
    """Run a job in this process, which a fault may hit, and write down its outcome."""
    folder = Path(job["folder"])
    if rank == job.get("rank", 0):
        call, action = job.get("call"), ACTIONS.index(job.get("action", "count"))
        kind = CALLS.index(call) if call else -1
        library.arm(f"{folder}/".encode(), kind, job.get("number", 0), action)
    if job["run"] == "cycles":
        cycles(folder, job["seconds"])
        return
    outcome: dict[str, Any] = {}
    try:
        weights = {**RUNS, **EPOCHS}[job["run"]](folder)
        content = b"".join(tensor.detach().contiguous().numpy().tobytes() for _, tensor in sorted(weights.items()))
        outcome["weights"] = hashlib.sha256(content).hexdigest()
    except Exception as error:
        outcome["error"] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    outcome["calls"] = {name: library.counted(number) for number, name in enumerate(CALLS)}
    if rank == job.get("rank", 0):
        (folder.parent / OUTCOME).write_text(json.dumps(outcome))


def forked(job: dict[str, Any], library: ctypes.CDLL, rank: int, variables: dict[str, str]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        output = os.open(f"{job['folder']}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.update(variables)
        run(job, library, rank)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def places(number: int) -> list[dict[str, str]]:
    """Return the variables by which torchrun tells each of several processes its place."""
    if number == 1:
        return [{}]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": number, "LOCAL_WORLD_SIZE": number, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "tests"}
    shared["TORCHELASTIC_USE_AGENT_STORE"] = False
    ranks = [{**shared, "RANK": rank, "LOCAL_RANK": rank} for rank in range(number)]
    return [{name: str(value) for name, value in one.items()} for one in ranks]


def outcome_of(job: dict[str, Any], library: ctypes.CDLL) -> dict[str, Any]:
    """Run a job; when one of its processes is killed, so are the others, and all are after ``delay`` seconds."""
    folder = Path(job["folder"])
    (folder.parent / OUTCOME).unlink(missing_ok=True)
    start = time.monotonic()
    given = places(PROCESSES.get(job["run"], 1))
    children = {forked(job, library, rank, variables) for rank, variables in enumerate(given)}
    was_killed, crash = False, ""
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        children.discard(child)
        if child and os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            crash = signal.Signals(os.WTERMSIG(status)).name
        is_late = time.monotonic() - start > job.get("delay", job.get("seconds", 0) + LIMIT)
        was_killed |= bool(child and os.WIFSIGNALED(status)) or (is_late and bool(children))
        if was_killed:
            while children:
                other = children.pop()
                os.kill(other, signal.SIGKILL)
                os.waitpid(other, 0)
        elif not child:
            time.sleep(0.002)
    file = folder.parent / OUTCOME
    outcome = json.loads(file.read_text()) if file.exists() else {}
    return {**outcome, "crash": crash, "killed": was_killed, "seconds": time.monotonic() - start}


def serve(library: str) -> None:
    loaded = ctypes.CDLL(library)
    for line in sys.stdin:
        print(json.dumps(outcome_of(json.loads(line), loaded)), flush=True)


class Server:
    """The process that runs the jobs, for as long as the context is open."""

    def __init__(self, folder: Path) -> None:
        library = folder / "faulty_calls.so"
        source = Path(__file__).with_name("faulty_calls.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
        command = [sys.executable, "-W", "ignore", "-X", "faulthandler", __file__, str(library)]
        started_in = environment(LD_PRELOAD=str(library), OMP_NUM_THREADS="1")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=started_in)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.communicate()

    def __call__(self, run: str, folder: Path, **job: Any) -> dict[str, Any]:
        outcome = self._ask(run, folder, **job)
        # 2 of 1,000 runs crashed in collectives of Gloo (torch 2.13): a segmentation fault, and a double free.
        if outcome["crash"] and run in PROCESSES:
            print(f"{folder}: ended by {outcome['crash']}, and is run again:\n{Path(f'{folder}.log').read_text()}")
            if "call" in job:
                shutil.rmtree(folder)
            outcome = self._ask(run, folder, **job)
        return outcome

    def _ask(self, run: str, folder: Path, **job: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        folder.parent.mkdir(parents=True, exist_ok=True)
        print(json.dumps({"run": run, "folder": str(folder), **job}), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(sys.argv[1])
