"""tileoverlap launch: W processes of one program on this machine, one a rank."""

from __future__ import annotations

import argparse
import os
import shutil
import socket
import sys
import tempfile
from contextlib import ExitStack
from typing import Any

from tileoverlap import _core
from tileoverlap.cli._parser import UsageError, count, seconds
from tileoverlap.cli._ranks import Ranks

__all__ = ["add_parser"]

_MOST_RANKS = 1024
_GRACE_ABOVE_LIMIT_S = 10.0


def add_parser(commands: Any) -> None:
    """Adds the command to the argument parser."""
    parser = commands.add_parser(
        "launch",
        help="start a program as W ranks on this machine",
        description="Starts W processes of a program on this machine, one a rank, and tells each "
        "which it is: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and "
        "TILEOVERLAP_STORE, as bootstrap.from_environment() and torch.distributed read them. "
        "Exits with 0 where all ranks do, else with the code of the first that failed (128 + N "
        "after signal N).",
    )
    parser.add_argument(
        "-n",
        dest="ranks",
        type=count(high=_MOST_RANKS),
        required=True,
        metavar="W",
        help="processes",
    )
    parser.add_argument(
        "--store",
        metavar="ADDRESS",
        help="where the ranks meet, HOST:PORT or file:PATH; unless given, a file in a temporary "
        "folder",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="S",
        help="how long the other ranks may go on after one has failed, to report what they know; "
        f"unless given {_GRACE_ABOVE_LIMIT_S:g} s more than TILEOVERLAP_TIMEOUT_S, after which "
        "every wait for the failed one has ended",
    )
    parser.add_argument(
        "--no-prefix",
        action="store_true",
        help="pass output on as it is, instead of line by line behind the number of its rank",
    )
    parser.add_argument(
        "program",
        nargs=argparse.REMAINDER,
        metavar="COMMAND ...",
        help="the program and its arguments; a .py file runs in this Python, `tileoverlap` is this "
        "one",
    )
    parser.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    program = options.program[1:] if options.program[:1] == ["--"] else options.program
    if not program:
        raise UsageError("say what to launch: tileoverlap launch -n W COMMAND ...")
    grace = options.grace
    if grace is None:
        grace = _core.wait_limit_s() + _GRACE_ABOVE_LIMIT_S
    with ExitStack() as stack:
        store = options.store
        if store is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tileoverlap-"))
            store = f"file:{folder}/store"
        ranks = stack.enter_context(Ranks(prefix=not options.no_prefix, grace_s=grace))
        common = {
            "WORLD_SIZE": str(options.ranks),
            "LOCAL_WORLD_SIZE": str(options.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "TILEOVERLAP_STORE": store,
            # Python would keep lines back when it does not write to a terminal.
            "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
        }
        arguments = _resolve(program)
        for rank in range(options.ranks):
            ranks.start(
                arguments, {**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            )
        return ranks.wait()


def _resolve(program: list[str]) -> list[str]:
    if program[0].endswith(".py"):
        return [sys.executable, *program]
    if program[0] == "tileoverlap":
        return [sys.executable, "-m", "tileoverlap", *program[1:]]
    if shutil.which(program[0]) is None:
        raise UsageError(f"cannot start '{program[0]}': no such program")
    return program


def _free_port() -> int:
    """For torch.distributed, should the program use it; ours finds a port by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
