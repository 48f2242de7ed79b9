"""Nothing is reported of results that are wrong."""

from __future__ import annotations

import math
from typing import Any

from tileoverlap.bench.loop_back import LoopBack, Tensors, valid_output
from tileoverlap.bench.peers import cublas_loop
from tileoverlap.errors import Error
from tileoverlap.plan import Plan
from tileoverlap.reference import TOLERANCES

__all__ = ["WrongResult", "check_gemm", "check_operator", "check_stored"]


class WrongResult(Error):
    """A benchmark's result is not that of the reference."""


def check_gemm(torch: Any, plan: Plan, tensors: Tensors, dtype: str) -> None:
    """Raises WrongResult where the output's valid rows are not those of a cuBLAS loop."""
    expected = tensors.packed_output()
    cublas_loop(torch, tensors, expected)()
    ours = valid_output(torch, plan, tensors.output)
    distance = _norm(torch, ours, expected) / _norm(torch, expected)
    allowed = TOLERANCES[dtype].relative_l2
    if not distance <= allowed:
        raise WrongResult(
            f"the GEMM's relative distance from cuBLAS is {distance:.2e}, allowed are {allowed:.0e}"
        )


def _norm(torch: Any, a: Any, minus: Any = None) -> float:
    """In float32, a part at a time."""
    total = 0.0
    for begin in range(0, len(a), 4096):
        part = a[begin : begin + 4096].float()
        if minus is not None:
            part = part - minus[begin : begin + 4096].float()
        total += float(part.square().sum())
    return math.sqrt(total)


def check_operator(torch: Any, rank: LoopBack, tensors: Tensors, comm_sms: int, dtype: str) -> None:
    """Poisons output and staging, makes one call, and raises WrongResult where rows are wrong at
    their owners."""
    tensors.output.fill_(float("nan"))
    rank.begin()
    rank.ship(rank.sms, wait=False)
    rank.operator(comm_sms)
    torch.cuda.synchronize()
    rank.check()
    check_gemm(torch, rank.plan, tensors, dtype)
    _check_returned(rank)


def check_stored(torch: Any, rank: LoopBack, tensors: Tensors) -> None:
    """Behind check_operator: the same rows, where the GEMM stores them itself."""
    expected = tensors.output.clone()
    tensors.output.fill_(float("nan"))
    rank.begin()
    rank.ship(rank.sms, wait=False)
    rank.stored()
    torch.cuda.synchronize()
    rank.check()
    here = rank.plan.rank
    for run in rank.plan.runs[:, -1]:  # the rank's own rows stand last
        assert run["owner"] == here
        rows = slice(run["row_begin"], run["row_begin"] + run["row_count"])
        if not torch.equal(tensors.output[rows], expected[rows]):
            raise WrongResult(f"rows of expert {run['expert']} that stay on rank {here} are wrong")
    tensors.output.copy_(expected)
    _check_returned(rank)


def _check_returned(rank: LoopBack) -> None:
    wrong = rank.wrong_bytes()
    if wrong:
        raise WrongResult(f"{wrong} of {rank.shipped_bytes} returned bytes are wrong")
