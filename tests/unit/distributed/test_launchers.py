import os
import socket
import subprocess
import sys

import pytest

from fresh_process import environment, portico
from portico import InputError
from portico.distributed.launchers import join_mpi, join_processes_of_script

OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE")
INTEL_MPI = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


@pytest.fixture(autouse=True)
def variables(monkeypatch):
    """Give each test an environment of its own."""
    plain = {
        name: value for name, value in os.environ.items() if name not in (*TORCHRUN, "MASTER_ADDR", "MASTER_PORT")
    }
    monkeypatch.setattr(os, "environ", plain)


@pytest.mark.parametrize("names", [OPEN_MPI, INTEL_MPI])
def test_sets_what_torchrun_sets(names):
    os.environ.update(dict(zip(names, ("3", "4", "1", "2"), strict=True)), MASTER_ADDR="10.0.0.1")
    join_mpi()
    assert [os.environ[name] for name in TORCHRUN] == ["3", "4", "1", "2", "1", "2"]
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("10.0.0.1", "29500")


def test_does_nothing_for_one_process_or_under_torchrun():
    before = dict(os.environ)
    join_mpi()
    assert os.environ == before
    os.environ.update(dict(zip(OPEN_MPI, ("0", "1", "0", "1"), strict=True)))
    join_mpi()
    assert "RANK" not in os.environ
    os.environ.update(dict(zip(OPEN_MPI, ("1", "2", "1", "2"), strict=True)), RANK="0")
    join_mpi()
    assert os.environ["RANK"] == "0"


def test_leaves_the_steps_of_slurm_to_its_own_variables():
    """``srun`` sets ``PMI_RANK`` and ``PMI_SIZE`` too; Intel's mpirun in an allocation says which ranks are here."""
    os.environ.update(PMI_RANK="3", PMI_SIZE="4", SLURM_STEP_ID="0")
    join_mpi()
    assert "RANK" not in os.environ
    os.environ.update(dict(zip(INTEL_MPI, ("3", "4", "3", "4"), strict=True)))
    join_mpi()
    assert os.environ["RANK"] == "3"


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            ("0", "4", "0", "2"),
            "mpirun started 4 processes on several machines; set MASTER_ADDR to the address of the",
        ),
        (("0", "3", "0", "2"), "mpirun started 3 processes, 2 of them on this machine; start as many on each machine"),
    ],
)
def test_refuses(ranks, message):
    os.environ.update(dict(zip(OPEN_MPI, ranks, strict=True)))
    with pytest.raises(InputError, match=message):
        join_mpi()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, ["1", "2", "1", "2", "0", "1"]),
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "LOCAL_SIZE": "2"}, ["3", "4", "1", "2", "1", "2"]),
        ({"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "SLURM_STEP_ID": "0"}, ["1", "2", "1", None, None, None]),
        ({"LOCAL_RANK": "1", "WORLD_SIZE": "2"}, [None, "2", "1", None, None, None]),  # portico's own processes
        ({"RANK": "1", "WORLD_SIZE": "2"}, ["1", "2", None, None, None, None]),  # a machine of Kubernetes
        ({"WORLD_SIZE": "2"}, [None, "2", None, None, None, None]),
    ],
)
def test_adds_what_processes_of_a_script_have_not_set(given, expected):
    os.environ.update(given)
    join_processes_of_script()
    assert [os.environ.get(name) for name in TORCHRUN] == expected


def test_refuses_processes_on_an_unknown_number_of_machines():
    os.environ.update(RANK="2", LOCAL_RANK="0", WORLD_SIZE="4")
    with pytest.raises(InputError, match=r"RANK=2 of WORLD_SIZE=4 and LOCAL_RANK=0 do not .*; set LOCAL_WORLD"):
        join_processes_of_script()


SPAWNS = """
import os
import torch
from accelerate import debug_launcher
from torch.multiprocessing import start_processes
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments


def train(rank=None):
    if rank is not None:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_PORT="{port}")
    torch.set_num_threads(2)
    os.environ.pop("OMP_NUM_THREADS", None)
    args = toy_arguments("out", TrainingArguments)
    trainer = Trainer(Line(), args, train_dataset=Points())
    trainer.train()
    weights = trainer.model.linear.weight.tolist()
    open(f"{{args.process_index}}.txt", "w").write(f"{{args.world_size}} {{torch.get_num_threads()}} {{weights}}")


{start}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", ["start_processes(train, nprocs=2, start_method='fork')", "debug_launcher(train, num_processes=2)"]
)
def test_processes_that_a_script_starts_are_one_run(start, tmp_path):
    (tmp_path / "script.py").write_text(SPAWNS.format(start=start, port=free_port()))
    ended = portico("run", "script.py", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    first, second = ((tmp_path / f"{rank}.txt").read_text() for rank in range(2))
    assert first.startswith("2 2 ")
    assert first == second


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


SCRIPT = """
from models import Line, Points, toy_arguments
from transformers import Trainer, TrainingArguments

args = toy_arguments("out", TrainingArguments)
trainer = Trainer(Line(), args, train_dataset=Points())
trainer.train()
print(Trainer.__module__, args.world_size, args.process_index, trainer.model.linear.weight.tolist(), flush=True)
"""


@pytest.mark.slow
def test_processes_of_accelerate_launch_and_mpirun_are_one_run(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    port = free_port()
    started = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "portico", "run", "script.py"],
            cwd=tmp_path,
            env=environment(
                **dict(zip(OPEN_MPI, (str(rank), "2", str(rank), "2"), strict=True)),
                MASTER_PORT=port,
                ACCELERATE_USE_CPU="True",
                ACCELERATE_MIXED_PRECISION="no",
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], ended
    told = [out.splitlines()[-1].split(" ", 3) for out, _ in ended]
    assert [line[:3] for line in told] == [["portico.trainer", "2", "0"], ["portico.trainer", "2", "1"]]
    assert told[0][3] == told[1][3]
    assert [errors.count("replaces Trainer") for _, errors in ended] == [1, 0]
