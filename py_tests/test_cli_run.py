"""tileoverlap run: correct layers, pure JSON, timelines."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from gpu_support import gpu_marks, needs_stores

import tileoverlap as to

CPU = ["--device", "cpu"]
SMALL = [*CPU, "--tokens", "24", "--hidden", "16", "--inner", "8", "--iterations", "2"]
SMALL += ["--tile-m", "16", "--tile-n", "16"]


def tileoverlap(*arguments: str, cwd: Path | None = None, **env: str):
    return subprocess.run(
        [sys.executable, "-m", "tileoverlap", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
    )


def run_json(*arguments: str) -> dict:
    done = tileoverlap("run", *CPU, *arguments, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_the_default_run_is_correct():
    done = tileoverlap("run", *CPU)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "correct"
    assert "4 ranks on the cpu, 64 experts, 512 tokens a rank, top-6, quick routing" in done.stdout
    assert "overlapped equals serial bit for bit: yes" in done.stdout


@pytest.mark.skipif(bool(to.cuda_devices()), reason="there is a GPU")
def test_without_a_gpu_the_cpu_is_taken():
    done = tileoverlap("run", "--tokens", "8", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["options"]["device"], report["options"]["dtype"]) == ("cpu", "float32")
    assert report["gpu"] is None


class TestOnAGpu:
    pytestmark = gpu_marks()

    def test_the_default_run_takes_it_and_is_correct(self):
        done = tileoverlap("run")
        assert done.returncode == 0, done.stderr + done.stdout
        assert done.stdout.splitlines()[-1] == "correct"
        assert "4 ranks on cuda:0, 64 experts, 512 tokens a rank" in done.stdout
        assert to.cuda_devices()[0].name in done.stdout

    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    @pytest.mark.parametrize("expert", ["single", "gelu", "silu_gate"])
    def test_every_type_and_expert_is_correct(self, dtype: str, expert: str, tmp_path: Path):
        path = tmp_path / "trace.json"
        report = run_json(
            "--device", "cuda", "--dtype", dtype, "--expert", expert, "--timeline", str(path)
        )
        assert report["correct"]
        assert report["threads"] is None
        assert 0 < report["gpu"]["comm_sms_a_rank"] < report["gpu"]["sms_a_rank"]
        assert json.loads(path.read_text())["traceEvents"]

    def test_sms_can_be_chosen(self):
        report = run_json("--device", "cuda", "--ranks", "2", "--sms", "9", "--comm-sms", "2")
        assert report["correct"]
        assert (report["gpu"]["sms_a_rank"], report["gpu"]["comm_sms_a_rank"]) == (9, 2)

    @needs_stores()
    def test_the_gemm_can_store_rows_at_their_owners(self):
        report = run_json("--device", "cuda", "--transfer", "store")
        assert report["correct"]
        assert report["gpu"]["transfer"] == "store"


def test_a_layer_on_real_routing_is_correct(real_trace: Path):
    """The run that every change has to pass."""
    report = run_json(
        "--routing",
        str(real_trace),
        "--trace-layer",
        "13",
        "--ranks",
        "4",
        "--experts",
        "64",
        "--top-k",
        "6",
        "--tokens",
        "2048",
        "--iterations",
        "3",
    )
    assert report["correct"]
    assert report["bit_equal"]
    assert report["error"]["per_token"] <= 1e-5
    assert sum(rank["valid_rows"] for rank in report["ranks"]) == 4 * 2048 * 6
    assert [rank["copies"] for rank in report["ranks"]] == [2048 * 6] * 4
    assert report["load_max_over_mean"] > 1.01


@pytest.mark.parametrize(
    "routing", ["balanced", "moderate_skew", "stress_skew", "one_expert", "quick"]
)
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_every_routing_and_layout_is_correct(routing: str, layout: str):
    report = run_json("--routing", routing, "--layout", layout, *SMALL)
    assert report["correct"]
    assert report["options"]["routing"] == routing
    if layout == "compact":
        assert report["gemm_rows_per_valid_row"] == 1
        assert all(rank["padding_rows"] == 0 for rank in report["ranks"])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("expert", ["single", "gelu", "silu_gate"])
def test_every_type_and_expert_is_correct(dtype: str, expert: str):
    report = run_json("--dtype", dtype, "--expert", expert, *SMALL)
    assert report["correct"]
    assert report["error"]["per_token_limit"] == to.reference.TOLERANCES[dtype].per_token


def test_uneven_experts_many_threads_and_wide_segments_are_correct():
    report = run_json(
        "--ranks",
        "3",
        "--experts",
        "7",
        "--top-k",
        "2",
        "--routing",
        "stress_skew",
        "--producer-threads",
        "2",
        "--consumer-threads",
        "2",
        "--bands-per-segment",
        "3",
        "--group",
        "2",
        "--seed",
        "5",
        *SMALL,
    )
    assert report["correct"]
    assert [rank["experts"] for rank in report["ranks"]] == [3, 2, 2]
    assert report["threads"]["in_all"] == 15


def test_bytes_are_those_of_the_copies():
    report = run_json("--routing", "balanced", "--experts", "8", "--top-k", "2", *SMALL)
    for rank in report["ranks"]:
        assert rank["valid_rows"] == rank["copies"] == 48
        assert rank["dispatched_bytes"] == rank["returned_bytes"] == rank["received_bytes"]
        assert rank["returned_bytes"] == 36 * 16 * 4


def test_one_rank_has_no_overlap_ratio():
    report = run_json("--ranks", "1", *SMALL)
    assert report["overlap_ratio"] == {"timeline": None, "wall": None}
    text = tileoverlap("run", "--ranks", "1", *SMALL).stdout
    assert "overlap ratio: n/a by timeline, n/a by wall time" in text
    assert "no row travels between ranks" in text


def test_no_tokens_are_correct_too():
    report = run_json("--routing", "balanced", *SMALL, "--tokens", "0")
    assert report["correct"]
    assert report["load_max_over_mean"] is None


def test_the_timeline_is_a_chrome_trace_with_a_row_a_worker(tmp_path: Path):
    path = tmp_path / "trace.json"
    report = run_json("--timeline", str(path), "--ranks", "2", *SMALL)
    assert report["correct"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]
    events = json.loads(path.read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in spans} == {0, 1}
    assert {event["name"] for event in spans} >= {"produce: tile", "consume: copy", "reduce"}
    assert min(event["ts"] for event in spans) == 0
    assert all(event["dur"] >= 0 for event in spans)
    names = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert {(event["pid"], event["tid"]) for event in spans} <= set(names)
    assert len({name for (pid, _), name in names.items() if pid == 0}) == 3


def test_the_timeline_replaces_a_file_and_keeps_its_rights(tmp_path: Path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    assert tileoverlap("run", "--timeline", str(path), *SMALL).returncode == 0
    assert json.loads(path.read_text())["traceEvents"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_the_timeline_may_go_to_a_device():
    done = tileoverlap("run", "--timeline", "/dev/null", *SMALL)
    assert done.returncode == 0, done.stderr


def test_a_wait_that_reaches_its_limit_is_one_line_and_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys
):
    from tileoverlap import cli
    from tileoverlap.cli import run

    def fail(_):
        raise to.WaitTimeout("rank 1, stage reduce, epoch 1: waited", rank=1)

    monkeypatch.setattr(run, "measure", fail)
    assert cli.main(["run", *SMALL]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "tileoverlap: error: rank 1, stage reduce, epoch 1: waited\n"


def test_a_wrong_result_is_said_and_code_1(monkeypatch: pytest.MonkeyPatch, capsys):
    from tileoverlap import cli
    from tileoverlap.cli import _measure

    real = _measure.reference.layer
    monkeypatch.setattr(
        _measure.reference, "layer", lambda *a, **k: [part * 1.001 for part in real(*a, **k)]
    )
    assert cli.main(["run", *SMALL]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "WRONG"
    assert cli.main(["run", "--json", *SMALL]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["correct"], report["bit_equal"]) == (False, True)


def test_a_real_interrupt_ends_the_run(tmp_path: Path):
    path = tmp_path / "trace.json"
    program = [sys.executable, "-m", "tileoverlap", "run", "--timeline", str(path)]
    running = subprocess.Popen(
        [*program, *SMALL, "--iterations", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    limit = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < limit:
        time.sleep(0.02)
    time.sleep(0.3)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert (out, err) == ("", "tileoverlap: error: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_is_code_130_and_leaves_no_file(
    monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path
):
    from tileoverlap import cli
    from tileoverlap.cli import run

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "measure", interrupt)
    assert cli.main(["run", "--timeline", str(tmp_path / "trace.json"), *SMALL]) == 130
    assert capsys.readouterr().err == "tileoverlap: error: interrupted\n"
    assert list(tmp_path.iterdir()) == []
