"""Bad input of the command line: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from gpu_support import gpu_marks

import tileoverlap as to
from tileoverlap import cli


def fails(capsys: pytest.CaptureFixture, *arguments: str) -> str:
    """Runs what must be refused and returns the one line."""
    assert cli.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tileoverlap: error: ")
    return lines[0]


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "0"], ["--ranks", "at least 1", "0"]),
        (["--ranks", "-3"], ["--ranks", "at least 1", "-3"]),
        (["--ranks", "four"], ["--ranks", "integer", "'four'"]),
        (["--ranks", "1.5"], ["--ranks", "integer", "'1.5'"]),
        (["--ranks"], ["--ranks", "expected one argument"]),
        (["--experts", "0"], ["--experts", "0"]),
        (["--top-k", "0"], ["--top-k", "0"]),
        (["--top-k", "99", "--routing", "stress_skew"], ["99", "64"]),
        (["--tokens", "-1"], ["--tokens", "-1"]),
        (["--tokens", "99999999999"], ["--tokens", "99999999999"]),
        (
            ["--routing", "balanced", "--tokens", "2147483647"],
            ["2147483647", "of memory, this machine has"],
        ),
        (
            ["--routing", "stress_skew", "--tokens", "99999999"],
            ["99999999", "of memory, this machine has"],
        ),
        (["--ranks", "4097"], ["--ranks", "at most 4096", "4097"]),
        (["--experts", "2147483647"], ["--experts", "at most 65536", "2147483647"]),
        (["--hidden", "0"], ["--hidden", "0"]),
        (["--tile-m", "0"], ["--tile-m", "0"]),
        (["--tile-n", "-8"], ["--tile-n", "-8"]),
        (["--bands-per-segment", "0"], ["--bands-per-segment", "0"]),
        (["--group", "0"], ["--group", "0"]),
        (["--layout", "padded"], ["--layout", "compact or owner_aligned", "'padded'"]),
        (["--dtype", "int8"], ["--dtype", "float32, bfloat16 or float16", "'int8'"]),
        (["--routing", "fair"], ["--routing", "balanced", "'fair'"]),
        (["--routing", "missing.npz"], ["missing.npz", "No such file"]),
        (["--routing", "."], ["Is a directory"]),
        (["--routing", "quick", "--tokens", "513"], ["512 tokens", "513"]),
        (["--routing", "quick", "--top-k", "7"], ["6 choices", "7"]),
        (["--routing", "quick", "--ranks", "5"], ["4 names", "5 ranks"]),
        (["--routing", "quick", "--trace-layer", "2"], ["no layer 2"]),
        (["--routing", "quick", "--experts", "32"], ["0..31"]),
        (["--routing", "balanced", "--trace-layer", "2"], ["--trace-layer", "balanced"]),
        (["--seed", "-1"], ["--seed", "-1"]),
        (["--fast"], ["--fast"]),
        (["--rank-s", "3"], ["--rank-s"]),
        (["surplus"], ["surplus"]),
    ],
)
def test_bad_values_are_refused(command, arguments, words, capsys):
    line = fails(capsys, command, *arguments)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--inner", "0"], ["--inner", "0"]),
        (["--inner", "6"], ["inner", "6", "multiple of 4"]),
        (["--hidden", "20", "--dtype", "bfloat16"], ["hidden", "20", "multiple of 8"]),
        (["--device", "gpu"], ["--device", "auto, cpu or cuda", "'gpu'"]),
        (["--sms", "0"], ["--sms", "0"]),
        (["--sms", "8"], ["--sms", "no meaning on the device cpu"]),
        (["--comm-sms", "1"], ["--comm-sms", "no meaning on the device cpu"]),
        (["--transfer", "store"], ["--transfer", "no meaning on the device cpu"]),
        (["--transfer", "mail"], ["--transfer", "ship", "store", "mail"]),
        (["--expert", "relu"], ["--expert", "single, gelu or silu_gate", "'relu'"]),
        (["--producer-threads", "0"], ["--producer-threads", "0"]),
        (["--consumer-threads", "x"], ["--consumer-threads", "'x'"]),
        (["--iterations", "0"], ["--iterations", "0"]),
        (["--timeout", "0"], ["--timeout", "0"]),
        (["--timeout", "soon"], ["--timeout", "'soon'"]),
        (["--timeout", "inf"], ["--timeout", "inf"]),
        (["--routing", "balanced", "--ranks", "3000"], ["9000 threads", "4096"]),
        (["--hidden", "1000000000", "--inner", "1000000"], ["memory", "TiB"]),
    ],
)
def test_bad_values_of_run_are_refused(arguments, words, capsys):
    line = fails(capsys, "run", "--device", "cpu", *arguments)
    assert all(word in line for word in words), line


@pytest.mark.skipif(bool(to.cuda_devices()), reason="there is a GPU")
def test_without_a_gpu_cuda_is_refused_with_the_reason(capsys):
    line = fails(capsys, "run", "--device", "cuda")
    assert "argument --device: no GPU can be used" in line
    assert to.why_no_cuda_device() in line
    fails(capsys, "run", "--device", "cuda", "--producer-threads", "2")


class TestOnAGpu:
    pytestmark = gpu_marks()

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["--dtype", "float32"], ["--dtype", "bfloat16 or float16", "'float32'", "cpu"]),
            (["--producer-threads", "2"], ["--producer-threads", "no meaning on the device cuda"]),
            (["--ranks", "17", "--routing", "balanced"], ["17 ranks", "16"]),
            (["--tile-m", "48"], ["tiles of 48x128", "there are"]),
            (["--sms", "100000"], ["sms = 100000"]),
        ],
    )
    def test_bad_values_are_refused(self, arguments, words, capsys):
        line = fails(capsys, "run", "--device", "cuda", *arguments)
        assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rank", "4"], ["--rank", "below --ranks 4", "4"]),
        (["--experts", "8", "--experts-per-rank", "2"], ["--experts-per-rank", "--experts"]),
        (["--limit", "0"], ["--limit", "0"]),
        (["--ranks", "1000", "--experts-per-rank", "66"], ["66000 experts", "65536"]),
        (["--tile-arrays", "--hidden", "2147483647", "--tile-n", "1"], ["tile array", "memory"]),
        (["--picture", "plan.gif"], [".png", "plan.gif"]),
    ],
)
def test_bad_values_of_plan_are_refused(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = fails(capsys, "plan", *arguments)
    assert all(word in line for word in words), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [[], ["draw"], ["--fast"], ["info", "--picture", "x"]])
def test_unknown_commands_are_refused(arguments, capsys):
    fails(capsys, *arguments)


@pytest.mark.parametrize(
    ("command", "option", "name"),
    [("run", "--timeline", "trace.json"), ("plan", "--picture", "p.png")],
)
def test_places_that_cannot_be_written_are_found_before_anything_is_computed(
    command, option, name, capsys, tmp_path, monkeypatch
):
    if command == "plan":
        pytest.importorskip("matplotlib")
    else:
        from tileoverlap.cli import run

        def never(_):
            raise AssertionError("computed before the output was checked")

        monkeypatch.setattr(run, "measure", never)
    missing = tmp_path / "missing" / name
    assert "No such file" in fails(capsys, command, option, str(missing))
    folder = tmp_path / name
    folder.mkdir()
    assert "Is a directory" in fails(capsys, command, option, str(folder))
    file = tmp_path / "file"
    file.write_text("")
    assert "Not a directory" in fails(capsys, command, option, str(file / name))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["file", name])


def test_bad_input_writes_no_file_and_keeps_the_old_one(capsys, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text("old")
    fails(capsys, "run", "--timeline", str(path), "--hidden", "3")
    fails(capsys, "run", "--timeline", str(path), "--routing", "nothing.npz")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_trace_with_ids_out_of_range_names_the_place(capsys, tmp_path):
    path = tmp_path / "bad.npz"
    ids = np.zeros((8, 2), np.int64)
    ids[5, 1] = 64
    np.savez(path, **{f"{name}/layer00/ids": ids for name in "abcd"})
    line = fails(capsys, "run", "--routing", str(path))
    for word in ("a/layer00/ids", "0..63", "got 64", "token 5", "slot 1"):
        assert word in line


def test_the_whole_program_ends_with_code_2_and_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "tileoverlap", "run", "--ranks", "none", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == "tileoverlap: error: argument --ranks: must be an integer, got 'none'\n"


def test_a_bad_environment_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "tileoverlap", "info", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TILEOVERLAP_TIMEOUT_S": "never"},
    )
    assert done.returncode == 0  # a report of what is set, right or wrong
    assert json.loads(done.stdout)["environment"]["TILEOVERLAP_TIMEOUT_S"] == "never"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["run", "--help"], ["plan", "--help"], ["--version"]]
)
def test_help_and_version_are_not_errors(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 0
    assert capsys.readouterr().out


def test_a_reader_that_leaves_early_gets_no_traceback():
    done = subprocess.run(
        f"{sys.executable} -m tileoverlap plan --experts 256 --all | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
