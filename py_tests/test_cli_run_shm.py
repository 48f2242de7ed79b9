"""tileoverlap run with a rank a process, over shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import LIMIT_S

SMALL = ["--tokens", "24", "--hidden", "16", "--inner", "8", "--iterations", "2"]
SMALL += ["--tile-m", "16", "--tile-n", "16"]
RUN = ["tileoverlap", "run", *SMALL]


def launch(world: int, *program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tileoverlap", "launch", "-n", str(world), *program],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def report_of(done: subprocess.CompletedProcess[str]) -> dict:
    """The JSON that rank 0 printed; nobody else printed anything."""
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(line.startswith("[0] ") for line in lines)
    return json.loads("\n".join(line[4:] for line in lines))


def regions() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("psm_")}


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_layer_with_a_rank_a_process_is_correct_and_leaves_nothing(world: int):
    before = regions()
    report = report_of(launch(world, *RUN, "--json"))
    assert report["correct"]
    assert report["bit_equal"]
    assert report["options"]["transport"] == "shm"
    assert report["options"]["ranks"] == len(report["ranks"]) == world
    assert report["threads"]["in_all"] == 3 * world
    assert regions() <= before


def test_rank_0_speaks_for_all_and_loads_are_those_of_one_process():
    together = ["--routing", "stress_skew", "--experts", "7", "--top-k", "2", "--json"]
    apart = report_of(launch(3, *RUN, *together))
    done = subprocess.run(
        [sys.executable, "-m", *RUN, "--device", "cpu", "--ranks", "3", *together],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert json.loads(done.stdout)["ranks"] == apart["ranks"]
    text = launch(3, *RUN).stdout
    assert "[0] 3 ranks on the cpu, one a process, 64 experts" in text
    assert text.splitlines()[-1] == "[0] correct"


def test_the_timeline_has_all_ranks_on_one_clock(tmp_path: Path):
    path = tmp_path / "trace.json"
    report_of(launch(3, *RUN, "--timeline", str(path), "--json"))
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1, 2}
    assert min(event["ts"] for event in spans) == 0


WRONG = """
import os, sys
from tileoverlap import cli
from tileoverlap.cli import _measure
real = _measure.reference.layer
if os.environ["RANK"] == "1":
    _measure.reference.layer = lambda *a, **k: [part * 1.001 for part in real(*a, **k)]
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_rank_that_is_wrong_fails_all():
    done = launch(3, sys.executable, "-c", WRONG, "run", *SMALL)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "[0] WRONG"
    assert done.stderr.count("ended with exit code 1") == 3


DIES = """
import os, signal, sys
from tileoverlap import cli
from tileoverlap.cli import _measure
if os.environ["RANK"] == "1":
    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)
    _measure._record = die
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_rank_that_dies_is_named_by_the_survivors():
    before = regions()
    done = launch(3, sys.executable, "-c", DIES, "run", *SMALL, "--timeout", "20")
    assert done.returncode == 137
    for rank in (0, 2):
        lines = [line for line in done.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        assert any("rank 1" in line for line in lines), done.stderr
    assert "rank 1 ended with SIGKILL; " in done.stderr
    assert regions() <= before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "3"], ["--ranks", "must be 2", "got 3"]),
        (
            ["--transport", "shm", "--device", "cuda"],
            ["--device", "cuda", "--transport shm", "--transport in_process"],
        ),
        (["--transport", "nvshmem", "--device", "cpu"], ["--device", "cpu", "--transport nvshmem"]),
        (["--transport", "mpi"], ["--transport", "in_process, shm or nvshmem", "'mpi'"]),
    ],
)
def test_what_cannot_be_is_one_line_a_rank_and_code_2(arguments: list[str], words: list[str]):
    done = launch(2, *RUN, *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    line, other, _ = sorted(done.stderr.splitlines())
    assert line.startswith("[0] tileoverlap: error: ")
    assert other.startswith("[1] tileoverlap: error: ")
    assert all(word in line for word in words), line


def test_all_ranks_in_each_process_where_that_is_asked_for():
    done = launch(2, *RUN, "--transport", "in_process", "--device", "cpu", "--ranks", "3")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert f"[{rank}] 3 ranks on the cpu, 64 experts" in done.stdout


def test_without_a_launcher_shm_says_how_to_start_it():
    names = ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_STEP_NUM_TASKS", "PMI_RANK")
    done = subprocess.run(
        [sys.executable, "-m", *RUN, "--transport", "shm"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={name: value for name, value in os.environ.items() if name not in names},
    )
    assert done.returncode == 1
    assert "start the processes with tileoverlap launch" in done.stderr
