"""Join processes of launchers other than ``torchrun`` into one run, by the variables that ``torchrun`` sets."""

import os

from portico.errors import InputError

# Rank and number of processes, of all and of this machine: Intel MPI and MPICH, Open MPI, MVAPICH.
_NAMES = (
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
)


def join_mpi() -> None:
    """Set the variables that ``torchrun`` sets, from the variables of ``mpirun``, unless they are set already.

    ``accelerate launch --cpu --num_processes 2 --mpirun_hostfile FILE`` starts processes like this.

    Raises:
        InputError: If there are several machines and the address of the first is unknown, or their numbers of
            processes differ.

    Source: accelerate 1.15, ``get_cpu_distributed_information`` and ``PartialState``.
    """
    if "RANK" in os.environ or "LOCAL_RANK" in os.environ:
        return
    names = next((names for names in _NAMES if int(os.environ.get(names[1], "1")) > 1), None)
    # srun sets PMI_RANK and PMI_SIZE too, and SLURM's variables say more.
    if names is None or ("SLURM_STEP_ID" in os.environ and names[3] not in os.environ):
        return
    rank = int(os.environ[names[0]])
    size = int(os.environ[names[1]])
    local_rank = int(os.environ.get(names[2], rank))
    local_size = int(os.environ.get(names[3], size))
    if size % local_size:
        raise InputError(
            f"mpirun started {size} processes, {local_size} of them on this machine; start as many on each machine."
        )
    if size > local_size and "MASTER_ADDR" not in os.environ:
        raise InputError(
            f"mpirun started {size} processes on several machines; set MASTER_ADDR to the address of the first, or "
            "`--main_process_ip` of `accelerate launch`."
        )
    _join(rank, size, local_rank, local_size)


def join_processes_of_script() -> None:
    """Set the variables of ``torchrun`` that are missing where the others are set, as accelerate reads them.

    Functions that ``torch.multiprocessing.spawn`` starts set ``RANK``, ``LOCAL_RANK`` and ``WORLD_SIZE``, and so does
    DeepSpeed's launcher, with ``LOCAL_SIZE``. accelerate's ``debug_launcher`` initializes the process group instead of
    setting ranks.

    Raises:
        InputError: If there are several machines and the number of processes on this one is unknown.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1 or "LOCAL_WORLD_SIZE" in os.environ or "SLURM_STEP_ID" in os.environ:
        return
    ranks = [os.environ[name] for name in ("RANK", "LOCAL_RANK") if name in os.environ]
    # portico's own processes have a LOCAL_RANK only.
    if len(ranks) == 1:
        return
    import torch

    if not ranks:
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return
        ranks = [str(torch.distributed.get_rank())] * 2
    rank, local_rank = map(int, ranks)
    local_size = int(os.environ.get("LOCAL_SIZE", size))
    if rank % local_size != local_rank:
        raise InputError(
            f"RANK={rank} of WORLD_SIZE={size} and LOCAL_RANK={local_rank} do not say how many processes are on each "
            "machine; set LOCAL_WORLD_SIZE, GROUP_RANK and GROUP_WORLD_SIZE too, as torchrun does."
        )
    # Lightning would divide the threads between the processes, and the last bits of sums would differ.
    os.environ.setdefault("OMP_NUM_THREADS", str(torch.get_num_threads()))
    _join(rank, size, local_rank, local_size)


def _join(rank: int, size: int, local_rank: int, local_size: int) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    values = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": rank // local_size,
        "GROUP_WORLD_SIZE": size // local_size,
    }
    os.environ.update({name: str(value) for name, value in values.items()})
