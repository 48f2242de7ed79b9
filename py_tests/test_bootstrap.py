"""Host all-gathers for ranks in processes of their own."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import LIMIT_S, on_each_rank

import tileoverlap as to
from tileoverlap import bootstrap

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None, reason="mpi4py is not installed"
)

RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"file:{tmp_path / 'store'}"


@contextmanager
def processes(program: str, environments: list[dict[str, str]]) -> Iterator[list[subprocess.Popen]]:
    """Python programs, one for each environment."""
    base = {name: value for name, value in os.environ.items() if name not in RANK_NAMES}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env={**base, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for environment in environments
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_messages_come_by_rank(world: int, store: str):
    def run(rank: int) -> list[list[bytes]]:
        with bootstrap.tcp(rank, world, store, timeout=LIMIT_S) as gather:
            return [gather(bytes([rank]) * rank * step) for step in range(4)]

    wanted = [[bytes([rank]) * rank * step for rank in range(world)] for step in range(4)]
    assert on_each_rank(world, run) == [wanted] * world


def test_long_messages_and_empty_ones_come_whole():
    address = f"127.0.0.1:{free_port()}"

    def run(rank: int) -> list[int]:
        mine = memoryview(b"") if rank == 1 else bytearray(8 << 20)
        with bootstrap.tcp(rank, 3, address, timeout=LIMIT_S) as gather:
            return [len(message) for message in gather(mine)]

    assert on_each_rank(3, run) == [[8 << 20, 0, 8 << 20]] * 3


def test_a_rank_that_is_late_is_waited_for(store: str):
    def run(rank: int) -> list[bytes]:
        time.sleep(2.0 if rank == 0 else 0.0)
        with bootstrap.tcp(rank, 2, store, timeout=LIMIT_S) as gather:
            return gather(b"")

    assert on_each_rank(2, run) == [[b"", b""]] * 2


def test_a_missing_rank_is_named_at_the_limit(store: str):
    errors = on_each_rank(2, lambda rank: bootstrap.tcp(rank, 3, store, timeout=0.3))
    for error in errors:
        assert isinstance(error, to.WaitTimeout)
        assert (error.stage, error.what, error.peer) == ("transport", "connection", 2)
        assert error.timeout_s == pytest.approx(0.3)


def test_nobody_at_the_address_is_said_with_the_reason():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(to.WaitTimeout, match=f"rank 0.*{address}: Connection refused"):
        bootstrap.tcp(1, 2, address, timeout=0.3)


def test_a_port_in_use_is_said():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = "{}:{}".format(*other.getsockname())
        with pytest.raises(to.Error, match=f"{address}: Address already in use"):
            bootstrap.tcp(0, 2, address, timeout=LIMIT_S)


def test_worlds_that_differ_are_refused_on_both_ranks(store: str):
    for error in on_each_rank(2, lambda rank: bootstrap.tcp(rank, 2 + rank, store)):
        assert isinstance(error, to.InvalidArgument)
        assert "2 (rank 0)" in str(error)
        assert "3 (rank 1" in str(error)


def test_a_rank_named_twice_is_refused_on_all(store: str):
    for error in on_each_rank(3, lambda thread: bootstrap.tcp(min(thread, 1), 3, store)):
        assert isinstance(error, to.InvalidArgument)
        assert "two processes say that they are rank 1 of 3" in str(error)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((2, 2, "localhost:1"), "rank must be at most 1, got 2"),
        ((0, 0, "localhost:1"), "world must be at least 1, got 0"),
        ((0, 2, "nowhere"), "HOST:PORT.*'nowhere'"),
        ((0, 2, "localhost:1", 0), "timeout"),
        ((0, 2, 80), "address must be a str, got int"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[Any, ...], words: str):
    with pytest.raises(to.InvalidArgument, match=words):
        bootstrap.tcp(*arguments)


def test_what_is_no_bytes_is_refused_and_spoils_nothing():
    with bootstrap.tcp(0, 1, "") as gather:
        with pytest.raises(to.DTypeError, match="bytes, got str"):
            gather("text")
        assert gather(b"x") == [b"x"]


def test_it_says_what_it_is_and_when_it_is_closed(store: str):
    gather = bootstrap.tcp(0, 1, store)
    assert repr(gather) == f"AllGather(rank=0 of 1, tcp {store})"
    gather.close()
    gather.close()
    assert repr(gather) == f"AllGather(rank=0 of 1, tcp {store}, it is closed)"
    with pytest.raises(to.Error, match="rank 0 has no host all-gather any more: it is closed"):
        gather(b"")


def test_a_rank_that_closes_is_named_to_the_others(store: str):
    def run(rank: int) -> None:
        gather = bootstrap.tcp(rank, 3, store, timeout=LIMIT_S)
        if rank == 1:
            gather.close()
        else:
            gather(b"")

    errors = on_each_rank(3, run)
    assert all("rank 1 has closed its connection" in str(errors[rank]) for rank in (0, 2))


DIES = """
import os, time
from tileoverlap import Error, bootstrap
me = bootstrap.from_environment(timeout=60)
me.all_gather(b"")
print("joined", flush=True)
begin = time.monotonic()
try:
    if me.rank == 1:
        time.sleep(60)
    me.all_gather(b"")
except Error as error:
    print(error, time.monotonic() - begin < 30, flush=True)
"""


def rank_environments(world: int, store: str) -> list[dict[str, str]]:
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(world),
            "TILEOVERLAP_STORE": store,
        }
        for rank in range(world)
    ]


def test_a_killed_process_is_named_to_the_survivors_at_once(store: str):
    with processes(DIES, rank_environments(3, store)) as running:
        assert running[1].stdout.readline() == "joined\n"
        running[1].kill()
        for rank in (0, 2):
            out, _ = running[rank].communicate(timeout=LIMIT_S)
            assert "rank 1 has closed its connection" in out
            assert out.endswith(" True\n")


WAITS = """
from tileoverlap import bootstrap
print("waits", flush=True)
bootstrap.from_environment(timeout=60)
"""


def test_ctrl_c_reaches_a_rank_that_waits(store: str):
    with processes(WAITS, rank_environments(2, store)[:1]) as running:
        assert running[0].stdout.readline() == "waits\n"
        time.sleep(0.3)
        running[0].send_signal(signal.SIGINT)
        out, _ = running[0].communicate(timeout=LIMIT_S / 2)
        assert "KeyboardInterrupt" in out


class TestFromEnvironment:
    @pytest.fixture(autouse=True)
    def _no_launcher(self, monkeypatch: pytest.MonkeyPatch):
        for name in list(os.environ):
            if name in RANK_NAMES or name.startswith(("MASTER_", "OMPI_", "PMI", "MPI_", "SLURM_")):
                monkeypatch.delenv(name)
        monkeypatch.delenv("TILEOVERLAP_STORE", raising=False)

    def say(self, monkeypatch: pytest.MonkeyPatch, **variables: Any) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    def test_without_a_launcher_it_says_how_to_start(self):
        with pytest.raises(to.Error, match="tileoverlap launch, torchrun, mpirun or srun"):
            bootstrap.from_environment()

    @pytest.mark.parametrize(
        "variables",
        [
            dict(zip(RANK_NAMES, (0, 1, 0, 1), strict=True)),
            {
                "OMPI_COMM_WORLD_RANK": 0,
                "OMPI_COMM_WORLD_SIZE": 1,
                "OMPI_COMM_WORLD_LOCAL_RANK": 0,
                "OMPI_COMM_WORLD_LOCAL_SIZE": 1,
            },
            {"PMI_RANK": 0, "PMI_SIZE": 1, "MPI_LOCALRANKID": 0, "MPI_LOCALNRANKS": 1},
            {
                "SLURM_PROCID": 0,
                "SLURM_STEP_NUM_TASKS": 1,
                "SLURM_LOCALID": 0,
                "SLURM_STEP_TASKS_PER_NODE": "1",
            },
        ],
    )
    def test_each_launcher_is_understood(self, variables: dict, monkeypatch: pytest.MonkeyPatch):
        self.say(monkeypatch, **variables)
        me = bootstrap.from_environment()
        assert (me.rank, me.world, me.local_rank, me.local_world) == (0, 1, 0, 1)
        assert me.all_gather(b"x") == [b"x"]

    def test_a_launcher_inside_of_another_counts(self, monkeypatch: pytest.MonkeyPatch):
        self.say(monkeypatch, OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2)
        self.say(monkeypatch, RANK=0, WORLD_SIZE=1, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1)
        assert bootstrap.from_environment().world == 1

    def test_a_batch_script_of_slurm_is_no_rank(self, monkeypatch: pytest.MonkeyPatch):
        self.say(monkeypatch, SLURM_PROCID=0, SLURM_NTASKS=8)
        with pytest.raises(to.Error, match="no rank is set"):
            bootstrap.from_environment()

    def test_slurms_tasks_are_counted_by_node(self, monkeypatch: pytest.MonkeyPatch, store: str):
        from tileoverlap._environment import read_environment

        self.say(monkeypatch, SLURM_PROCID=6, SLURM_STEP_NUM_TASKS=7, SLURM_LOCALID=0)
        self.say(monkeypatch, SLURM_STEP_TASKS_PER_NODE="2(x3),1", SLURM_NODEID=3)
        found = read_environment()
        assert found is not None
        assert (found.rank, found.world, found.local_rank, found.local_world) == (6, 7, 0, 1)

    @pytest.mark.parametrize(
        ("variables", "words"),
        [
            ({"RANK": 0}, "RANK is set in the environment, WORLD_SIZE is not"),
            ({"WORLD_SIZE": 2}, "WORLD_SIZE is set in the environment, RANK is not"),
            ({"RANK": 0, "WORLD_SIZE": 2}, "LOCAL_RANK is not"),
            ({"RANK": "one", "WORLD_SIZE": 2}, "RANK must be an integer.*'one'"),
            ({"RANK": 2, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}, "2 and 2"),
            (
                {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 2, "LOCAL_WORLD_SIZE": 2},
                "LOCAL_RANK must be below LOCAL_WORLD_SIZE, got 2 and 2",
            ),
            (
                {"RANK": 1, "WORLD_SIZE": 2, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4},
                "LOCAL_WORLD_SIZE must be at most WORLD_SIZE, got 4 and 2",
            ),
        ],
    )
    def test_contradictions_are_refused(
        self, variables: dict, words: str, monkeypatch: pytest.MonkeyPatch
    ):
        self.say(monkeypatch, **variables)
        with pytest.raises(to.InvalidArgument, match=words):
            bootstrap.from_environment()

    def test_it_says_what_the_ranks_need_to_meet(self, monkeypatch: pytest.MonkeyPatch):
        self.say(monkeypatch, RANK=0, WORLD_SIZE=2, LOCAL_RANK=0, LOCAL_WORLD_SIZE=2)
        with pytest.raises(to.Error, match=r"TILEOVERLAP_STORE.*MASTER_ADDR"):
            bootstrap.from_environment()
        self.say(monkeypatch, MASTER_ADDR="127.0.0.1", MASTER_PORT="none")
        with pytest.raises(to.InvalidArgument, match=r"MASTER_PORT.*'none'"):
            bootstrap.from_environment()

    def test_under_mpirun_without_mpi4py_it_asks_for_a_store(self, monkeypatch: pytest.MonkeyPatch):
        self.say(monkeypatch, PMI_RANK=0, PMI_SIZE=2, MPI_LOCALRANKID=0, MPI_LOCALNRANKS=2)
        monkeypatch.setattr(bootstrap.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(to.Error, match=r"PMI_RANK.*set TILEOVERLAP_STORE.*install mpi4py"):
            bootstrap.from_environment()

    @pytest.mark.parametrize(("port", "ours"), [(29500, 30871), (65000, 63629)])
    def test_beside_torchs_store_it_takes_a_port_of_its_own(
        self, port: int, ours: int, monkeypatch: pytest.MonkeyPatch
    ):
        self.say(monkeypatch, RANK=1, WORLD_SIZE=2, LOCAL_RANK=1, LOCAL_WORLD_SIZE=2)
        self.say(monkeypatch, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
        with pytest.raises(to.WaitTimeout, match=f"127.0.0.1:{ours}"):
            bootstrap.from_environment(timeout=0.05)


def test_the_program_in_the_docs_runs(repository: Path, tmp_path: Path):
    page = repository / "docs" / "processes.md"
    if not page.exists():
        pytest.skip("no docs here")
    (program,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    path = tmp_path / "my_program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "tileoverlap", "launch", "-n", "3", str(path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")


TORCH = """
import torch.distributed as dist
from tileoverlap import bootstrap
dist.init_process_group("gloo")
for group in (None, dist.new_group()):
    gather = bootstrap.from_torch(group, timeout=60)
    rank, world = gather.rank, gather.world
    assert gather(bytes([rank]) * rank) == [bytes([r]) * r for r in range(world)]
    print(gather, flush=True)
    gather.close()
dist.destroy_process_group()
"""


@needs_torch
def test_torch_carries_messages_of_different_lengths(store: str):
    environments = rank_environments(2, store)
    port = str(free_port())
    for environment in environments:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with processes(TORCH, environments) as running:
        for rank, process in enumerate(running):
            out, _ = process.communicate(timeout=2 * LIMIT_S)  # importing torch takes its time
            assert process.returncode == 0, out
            assert f"AllGather(rank={rank} of 2, torch gloo of its own)" in out
            assert f"AllGather(rank={rank} of 2, torch gloo)" in out


@needs_torch
def test_torch_that_is_not_initialised_is_said():
    with pytest.raises(to.Error, match="init_process_group"):
        bootstrap.from_torch()


MPI = """
from mpi4py import MPI
from tileoverlap import bootstrap
world_gather = bootstrap.from_mpi(MPI.COMM_WORLD, timeout=60)
for gather in (world_gather, bootstrap.from_environment(60).all_gather):
    rank, world = gather.rank, gather.world
    for unit in (0, 1, 1000):
        assert gather(bytes([rank]) * rank * unit) == [bytes([r]) * r * unit for r in range(world)]
    print(gather, flush=True)
"""


@needs_mpi
def test_mpi_carries_messages_of_different_lengths():
    # A wheel of MPI has it beside the interpreter.
    beside = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    mpirun = shutil.which("mpirun", path=beside)
    if mpirun is None:
        pytest.skip("no mpirun here")
    # What Open MPI asks before it starts ranks of root, or more than there are cores.
    asked = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    done = subprocess.run(
        [mpirun, "-n", "3", sys.executable, "-c", MPI],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**{k: v for k, v in os.environ.items() if k not in RANK_NAMES}, **asked},
    )
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        assert done.stdout.count(f"AllGather(rank={rank} of 3, mpi MPI_COMM_WORLD)") == 2
