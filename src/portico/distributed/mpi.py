"""Join processes started by an MPI launcher into one run, as ``torchrun`` does."""

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
