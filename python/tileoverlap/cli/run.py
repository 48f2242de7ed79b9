"""tileoverlap run: one MoE layer on ranks of this machine: is it right, what does it move, how much
is hidden."""

from __future__ import annotations

import argparse
import os
from contextlib import ExitStack
from typing import Any

from tileoverlap._environment import read_environment
from tileoverlap.bootstrap import RankProcess, from_environment
from tileoverlap.capacity import size_report
from tileoverlap.cli._cuda import CudaMachine, can_use_gpu
from tileoverlap.cli._machine import CpuMachine, Machine
from tileoverlap.cli._measure import ELEMENT_BYTES, Case, measure
from tileoverlap.cli._nvshmem import NvshmemMachine, has_nvshmem
from tileoverlap.cli._output import OutputFile, print_json
from tileoverlap.cli._parser import UsageError, choice, count, seconds
from tileoverlap.cli._run_report import make_report, print_report
from tileoverlap.cli._shm import ShmMachine
from tileoverlap.cli._whole_trace import whole_trace
from tileoverlap.cli._workload import (
    DEFAULT_RANKS,
    QUICK,
    add_plan_arguments,
    add_routing_arguments,
    check_memory,
    load_workload,
    plan_keywords,
)
from tileoverlap.cuda_executor import TRANSFERS
from tileoverlap.executor import DTYPES, EXPERT_KINDS
from tileoverlap.plan import make_plan

__all__ = ["add_parser"]

_DEVICES = ("auto", "cpu", "cuda")
_TRANSPORTS = ("in_process", "shm", "nvshmem")


def add_parser(commands: Any) -> None:
    """Adds the command to the argument parser."""
    parser = commands.add_parser(
        "run",
        help="run one MoE layer and check it",
        description="Runs one Mixture-of-Experts layer on W ranks of this process, or on one in "
        "each of W processes that tileoverlap launch or another launcher has started, with random "
        "data, overlapped and serial, and compares both with each other and with a float64 "
        "reference.",
    )
    add_routing_arguments(
        parser,
        default_routing=QUICK,
        default_ranks=None,
        about_ranks=f"ranks; unless given {DEFAULT_RANKS}, or the processes where each is one rank",
    )
    parser.add_argument(
        "--transport",
        type=choice(_TRANSPORTS),
        metavar="T",
        help="in_process: all ranks in this process; shm: this process is one rank, over shared "
        "memory of this machine (cpu only); nvshmem: this process is one rank, on a GPU; unless "
        "given in_process, and where a launcher has started several processes, or tileoverlap "
        "launch this one, nvshmem with a GPU (and a library built with NVSHMEM), else shm",
    )
    parser.add_argument(
        "--hidden",
        type=count(),
        default=256,
        metavar="N",
        help="elements of a token and of a returned row",
    )
    parser.add_argument(
        "--inner",
        type=count(),
        default=128,
        metavar="K",
        help="width between an expert's two projections",
    )
    parser.add_argument(
        "--dtype",
        type=choice(DTYPES),
        metavar="D",
        help="float32 (cpu only, and the default there), bfloat16 (the default on a GPU) or "
        "float16",
    )
    parser.add_argument(
        "--expert",
        type=choice(EXPERT_KINDS),
        default="silu_gate",
        metavar="KIND",
        help=" or ".join(EXPERT_KINDS),
    )
    parser.add_argument(
        "--device",
        type=choice(_DEVICES),
        default="auto",
        metavar="D",
        help="cpu, cuda (all ranks on one GPU), or auto: cuda where there is a GPU, and torch or "
        "cupy to hold tensors there, else cpu",
    )
    add_plan_arguments(parser)
    for threads in ("--producer-threads", "--consumer-threads"):
        parser.add_argument(
            threads, type=count(high=1024), metavar="N", help="a rank; cpu only, 1 unless given"
        )
    parser.add_argument(
        "--sms",
        type=count(),
        metavar="N",
        help="SMs of a rank; cuda only, unless given the GPU's, shared evenly",
    )
    parser.add_argument(
        "--comm-sms",
        type=count(),
        metavar="N",
        help="of these, SMs that ship rows; cuda only; unless given as many as are predicted to "
        "be fastest",
    )
    parser.add_argument(
        "--transfer",
        type=choice(TRANSFERS),
        metavar="T",
        help="ship: these SMs ship rows; store: the GEMM, on all SMs, stores them at their owners "
        "itself; cuda only, ship unless given",
    )
    parser.add_argument(
        "--iterations",
        type=count(high=1_000_000),
        default=5,
        metavar="N",
        help="after one warm-up, in each mode",
    )
    parser.add_argument(
        "--timeout", type=seconds, default=60.0, metavar="S", help="limit of every wait, seconds"
    )
    parser.add_argument(
        "--timeline",
        metavar="FILE",
        help="write the last overlapped call for chrome://tracing or Perfetto",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    with ExitStack() as stack:
        machine, dtype = _choose_machine(options, stack)
        workload = load_workload(options)
        case = Case(
            workload=workload,
            hidden=options.hidden,
            inner=options.inner,
            dtype=dtype,
            expert=options.expert,
            plan=plan_keywords(options),
            machine=machine,
            iterations=options.iterations,
            timeout_s=options.timeout,
        )
        _check_size(case)
        # Of several processes the first speaks for all.
        speaks = machine.ranks_here(workload.placement.world).start == 0
        timeline = None
        if options.timeline is not None and speaks:
            timeline = stack.enter_context(OutputFile(options.timeline, "the timeline"))
        measured = measure(case)
        trace = None if options.timeline is None else whole_trace(measured.timelines, machine)
        plans = [
            make_plan(workload.placement, rank, workload.counts, n=case.hidden, **case.plan)
            for rank in range(workload.placement.world)
        ]
        report = make_report(case, measured, plans)
        if timeline is not None and trace is not None:
            timeline.stream.write(trace.encode())
            timeline.commit()
        if not speaks:
            pass
        elif options.json:
            print_json(report)
        else:
            print_report(report)
            if options.timeline is not None:
                print(f"timeline: {options.timeline}")
    return 0 if report["correct"] else 1


def _choose_machine(options: argparse.Namespace, stack: ExitStack) -> tuple[Machine, str]:
    """Where it runs, and the dtype."""
    transport = options.transport or _default_transport(options.device)
    if transport == "in_process":
        options.ranks = options.ranks or DEFAULT_RANKS
        on_gpu = options.device == "cuda" or (options.device == "auto" and can_use_gpu())
    else:
        on_gpu = transport == "nvshmem"
        if options.device == ("cpu" if on_gpu else "cuda"):
            raise UsageError(
                f"argument --device: {options.device} is not what --transport {transport} runs on "
                "(--transport in_process runs all ranks in this process)"
            )
    if not on_gpu:
        _refuse_options(options, "cpu", ("sms", "comm_sms", "transfer"))
        threads = options.producer_threads or 1, options.consumer_threads or 1
        if transport == "in_process":
            return CpuMachine(*threads), options.dtype or "float32"
        return ShmMachine(_one_of_several(options, stack), *threads), options.dtype or "float32"
    _refuse_options(options, "cuda", ("producer_threads", "consumer_threads"))
    executor = {name: getattr(options, name) for name in ("sms", "comm_sms")}
    executor["transfer"] = options.transfer or TRANSFERS[0]
    machine = (
        CudaMachine(executor)
        if transport == "in_process"
        else NvshmemMachine(_one_of_several(options, stack), executor, stack)
    )
    dtype = options.dtype or machine.dtypes[0]
    if dtype not in machine.dtypes:
        raise UsageError(
            f"argument --dtype: must be {' or '.join(machine.dtypes)} on this GPU, got '{dtype}' "
            "(--device cpu takes all)"
        )
    return machine, dtype


def _default_transport(device: str) -> str:
    started = read_environment()
    if started is None or (started.world == 1 and not os.environ.get("TILEOVERLAP_STORE")):
        return "in_process"
    if device == "cuda" or (device == "auto" and has_nvshmem() and can_use_gpu()):
        return "nvshmem"
    return "shm"


def _one_of_several(options: argparse.Namespace, stack: ExitStack) -> RankProcess:
    me = from_environment(options.timeout)
    stack.enter_context(me.all_gather)
    if options.ranks not in (None, me.world):
        raise UsageError(
            f"argument --ranks: must be {me.world}, one a process, or left out, got {options.ranks}"
        )
    options.ranks = me.world
    return me


def _refuse_options(options: argparse.Namespace, device: str, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise UsageError(
                f"argument --{name.replace('_', '-')}: has no meaning on the device {device}"
            )


def _check_size(case: Case) -> None:
    """Refuses what this machine cannot hold before anything is allocated."""
    case.machine.check_ranks(case.workload.placement.world)
    need, what = _needed_bytes(case), "tensors and workspaces of these sizes"
    check_memory(need, what)
    case.machine.check_memory(need, what)


def _needed_bytes(case: Case) -> int:
    placement = case.workload.placement
    element = ELEMENT_BYTES[case.dtype]
    tokens = [len(part.ids) for part in case.workload.routed]
    # Random weights are made in float32 before they are converted; x and out exist in float64, too.
    weights = placement.experts * case.hidden * (case.inner + case.up_rows) * (element + 4)
    rows = sum(tokens) * (case.input_width + 2 * case.hidden) * (2 * element + 8)
    workspace = sum(
        size_report(
            placement,
            rank,
            max_tokens=max(tokens),
            top_k=case.workload.top_k,
            dtype=case.dtype,
            k=max(case.input_width, case.inner + case.up_rows),
            n=case.hidden,
            tile=case.plan["tile"],
            layout=case.plan["layout"],
        ).total_bytes
        for rank in range(placement.world)
    )
    # Each process makes the tensors of all ranks, and keeps those of its own.
    processes = placement.world // len(case.machine.ranks_here(placement.world))
    return processes * (weights + rows) + workspace
