"""tileoverlap launch: ranks in processes, their output, their ends, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import LIMIT_S

from tileoverlap import cli
from tileoverlap.cli._ranks import Ranks


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tileoverlap", "launch", *arguments]


def launch(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**os.environ, **env},
    )


def python(program: str) -> list[str]:
    """A command that runs `program` with os, sys, time imported and `rank` known."""
    head = "import os, sys, time, signal; rank = int(os.environ['RANK'])\n"
    return [sys.executable, "-c", head + program]


def test_each_rank_is_told_which_it_is():
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
    done = launch("-n", "3", *python(f"print(*[os.environ[name] for name in {names}])"))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank}] {rank} 3 {rank} 3 127.0.0.1" for rank in range(3)
    ]


def test_the_store_lies_in_a_folder_that_is_removed():
    done = launch("-n", "2", *python("print(os.environ['TILEOVERLAP_STORE'])"))
    (store,) = {line.split("] ")[1] for line in done.stdout.splitlines()}
    assert store.startswith("file:/")
    assert not Path(store.removeprefix("file:")).parent.exists()
    chosen = launch("-n", "1", "--store", "localhost:5", *python("print(os.environ)"))
    assert "'TILEOVERLAP_STORE': 'localhost:5'" in chosen.stdout


def test_ranks_meet_in_a_file_of_python(tmp_path: Path):
    program = tmp_path / "meet.py"
    program.write_text(
        "import sys\n"
        "from tileoverlap import bootstrap\n"
        "me = bootstrap.from_environment(timeout=60)\n"
        "print(me.all_gather(b'%d' % me.rank), sys.argv[1:])\n"
    )
    done = launch("-n", "3", "--", str(program), "-n", "7", "--grace")
    assert done.returncode == 0, done.stderr
    wanted = "[b'0', b'1', b'2'] ['-n', '7', '--grace']"
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] {wanted}" for rank in range(3)]


def test_lines_are_whole_and_outputs_apart():
    program = (
        "for i in range(200):\n"
        "    sys.stdout.write('out %d ' % i); sys.stdout.flush()\n"
        "    sys.stdout.write('x' * 300 + '\\n')\n"
        "    sys.stderr.write('error %d\\n' % i)\n"
        "sys.stdout.write('no end of line')"
    )
    done = launch("-n", "2", *python(program))
    assert done.returncode == 0
    for rank in range(2):
        mine = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert mine == [
            *(f"[{rank}] out {i} {'x' * 300}" for i in range(200)),
            f"[{rank}] no end of line",
        ]
        errors = [line for line in done.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        assert errors == [f"[{rank}] error {i}" for i in range(200)]


def test_lines_come_when_they_are_written():
    running = subprocess.Popen(
        command("-n", "1", *python("print('now'); time.sleep(60)")),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "[0] now\n"
    running.send_signal(signal.SIGTERM)
    assert running.wait(LIMIT_S) == 128 + signal.SIGTERM
    running.stdout.close()


def test_output_can_be_passed_on_as_it_is():
    done = launch("-n", "2", "--no-prefix", *python("os.write(1, b'hello\\n')"))
    assert (done.returncode, done.stdout) == (0, "hello\nhello\n")


def test_the_first_that_fails_gives_the_code_and_the_others_may_report():
    program = "\n".join(
        (
            "if rank == 1: sys.exit(3)",
            "time.sleep(0.5)",
            "print('rank', rank, 'reports')",
            "sys.exit(5 if rank == 0 else 0)",
        )
    )
    done = launch("-n", "3", *python(program))
    assert done.returncode == 3
    assert sorted(done.stdout.splitlines()) == ["[0] rank 0 reports", "[2] rank 2 reports"]
    assert done.stderr == (
        "tileoverlap launch: rank 1 ended with exit code 3; rank 0 ended with exit code 5\n"
    )


def test_a_signal_is_named_and_gives_128_and_its_number():
    done = launch("-n", "2", *python("if rank == 1: os.kill(os.getpid(), signal.SIGKILL)"))
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr == "tileoverlap launch: rank 1 ended with SIGKILL\n"


def test_a_killed_rank_comes_before_those_that_missed_it(capfd: pytest.CaptureFixture[str]):
    """Also where all have ended before the launcher looks."""
    with Ranks(prefix=False, grace_s=5.0) as ranks:
        for program in ("raise SystemExit(1)", "import os; os.kill(os.getpid(), 9)"):
            ranks.start([sys.executable, "-c", program], dict(os.environ))
        for rank in ranks._ranks:
            os.waitid(os.P_PID, rank.process.pid, os.WEXITED | os.WNOWAIT)
        assert ranks.wait() == 128 + signal.SIGKILL
    said = capfd.readouterr().err
    assert "rank 1 ended with SIGKILL; rank 0 ended with exit code 1" in said


def test_after_the_grace_the_others_are_ended_also_where_they_resist():
    program = "\n".join(
        (
            "if rank == 0: signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True))",
            "print('ready', flush=True)",
            "if rank == 2: time.sleep(0.7); sys.exit(9)",
            "while True: time.sleep(60)",
        )
    )
    begin = time.monotonic()
    done = launch("-n", "3", "--grace", "0.2", *python(program))
    assert time.monotonic() - begin < LIMIT_S / 2
    assert done.returncode == 9
    assert "[0] asked" in done.stdout
    assert done.stderr == (
        "tileoverlap launch: rank 2 ended with exit code 9; rank 1 ended with SIGTERM from this "
        "launcher; rank 0 ended with SIGKILL from this launcher\n"
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_are_passed_on(number: int):
    program = "\n".join(
        (
            f"signal.signal({int(number)}, lambda *_: sys.exit(10 + rank))",
            "print('ready', flush=True)",
            "time.sleep(60)",
        )
    )
    running = subprocess.Popen(
        command("-n", "2", *python(program)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    for _ in range(2):
        assert running.stdout.readline().endswith("ready\n")
    running.send_signal(number)
    _, errors = running.communicate(timeout=LIMIT_S)
    assert running.returncode in (10, 11)
    assert "rank 0 ended with exit code 10" in errors
    assert "rank 1 ended with exit code 11" in errors


def test_ranks_do_not_outlive_a_launcher_that_is_killed(tmp_path: Path):
    program = "print(os.getpid(), flush=True); time.sleep(60)"
    running = subprocess.Popen(
        command("-n", "1", *python(program)),
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},  # it cannot remove its folder
    )
    assert running.stdout is not None
    rank = int(running.stdout.readline().split()[1])
    running.kill()
    running.communicate(timeout=LIMIT_S)
    limit = time.monotonic() + LIMIT_S / 2
    while time.monotonic() < limit and _runs(rank):
        time.sleep(0.02)
    assert not _runs(rank)


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-n", "2"], ["say what to launch"]),
        (["true"], ["-n"]),
        (["-n", "0", "true"], ["at least 1", "0"]),
        (["-n", "2", "no-such-program"], ["cannot start 'no-such-program'"]),
        (["-n", "2", "--grace", "-1", "true"], ["--grace", "-1"]),
    ],
)
def test_bad_arguments_are_one_line_and_code_2(arguments: list[str], words: list[str], capsys):
    assert cli.main(["launch", *arguments]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert line.startswith("tileoverlap: error: ")
    assert all(word in line for word in words), line
