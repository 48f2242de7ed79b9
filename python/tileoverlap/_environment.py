"""The variables by which launchers tell a process which rank it is."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from tileoverlap.errors import InvalidArgument

__all__ = ["RankVariables", "read_environment"]


class RankVariables(NamedTuple):
    """What a launcher said."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    launcher: str
    """"torchrun" (also tileoverlap launch) or "mpi" (mpirun or srun)."""
    rank_name: str
    """The variable that holds the rank."""


class _Family(NamedTuple):
    """One launcher's names."""

    marks: tuple[str, ...]
    """It is this launcher where one of these is set."""
    launcher: str
    rank: str
    world: str
    local_rank: str
    local_world: str


# In this order, since launchers start each other: mpirun starts its own daemons by srun, and srun
# or mpirun start torchrun. Slurm's batch scripts see SLURM_PROCID, too; only steps of srun count.
_FAMILIES = (
    _Family(
        ("RANK", "WORLD_SIZE"), "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"
    ),
    _Family(
        ("OMPI_COMM_WORLD_RANK",),
        "mpi",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Family(
        ("MPI_LOCALRANKID",), "mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"
    ),
    _Family(
        ("SLURM_STEP_NUM_TASKS",),
        "mpi",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
    _Family(("PMI_RANK",), "mpi", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def read_environment() -> RankVariables | None:
    """None where no launcher has set anything. Raises InvalidArgument for what is missing, no
    number, or contradictory."""
    for family in _FAMILIES:
        if any(os.environ.get(mark) for mark in family.marks):
            return _read(family)
    return None


def _read(family: _Family) -> RankVariables:
    world = _number(family, family.world, low=1)
    rank = _number(family, family.rank)
    local_rank = _number(family, family.local_rank)
    if family.local_world == "SLURM_STEP_TASKS_PER_NODE":
        local_world = _tasks_on_this_node(family)
    else:
        local_world = _number(family, family.local_world, low=1)
    _check_below(family.rank, rank, family.world, world)
    _check_below(family.local_rank, local_rank, family.local_world, local_world)
    if local_world > world:
        raise InvalidArgument(
            f"{family.local_world} must be at most {family.world}, got {local_world} and {world}"
        )
    return RankVariables(rank, world, local_rank, local_world, family.launcher, family.rank)


def _value(family: _Family, name: str) -> str:
    value = os.environ.get(name)
    if not value:
        mark = next(mark for mark in family.marks if os.environ.get(mark))
        raise InvalidArgument(f"{mark} is set in the environment, {name} is not")
    return value


def _number(family: _Family, name: str, low: int = 0) -> int:
    value = _value(family, name)
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < low:
        raise InvalidArgument(f"{name} must be an integer of at least {low}, got '{value}'")
    return int(value)


def _tasks_on_this_node(family: _Family) -> int:
    """ "2(x3),1" are three nodes with two tasks each and one with one."""
    value = _value(family, family.local_world)
    counts: list[int] = []
    for part in value.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise InvalidArgument(f"{family.local_world} must look like '2(x3),1', got '{value}'")
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(family, "SLURM_NODEID") if len(counts) > 1 else 0
    _check_below("SLURM_NODEID", node, f"the nodes of {family.local_world}", len(counts))
    return counts[node]


def _check_below(name: str, value: int, limit_name: str, limit: int) -> None:
    if value >= limit:
        raise InvalidArgument(f"{name} must be below {limit_name}, got {value} and {limit}")
