"""tileoverlap plan: drawings, ratios, pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tileoverlap import cli

PAPER = ["--ranks", "4", "--experts-per-rank", "64", "--tokens", "8192", "--top-k", "2"]


@pytest.fixture
def plan(capsys: pytest.CaptureFixture):
    """Runs the command and returns what it printed."""

    def run(*arguments: str) -> str:
        assert cli.main(["plan", *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
def test_the_papers_case_needs_1_75_times_the_rows_and_compact_1_00(plan, layout: str):
    lines = plan(*PAPER, "--tile-m", "128", "--layout", layout).splitlines()
    rows = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert "1.00" in rows["compact"]
    assert "1.75" in rows["owner_aligned"]
    assert "(drawn)" in rows[layout]
    report = json.loads(plan(*PAPER, "--layout", layout, "--json"))
    assert report["layouts"]["owner_aligned"]["gemm_rows_per_valid_row"] == 1.75
    assert report["layouts"]["compact"]["gemm_rows_per_valid_row"] == 1.0
    assert report["layouts"]["owner_aligned"]["tile_rows_per_valid_row"] == 2.0


def test_the_drawing_shows_owners_bands_order_and_segments(plan):
    text = plan(
        "--ranks",
        "2",
        "--experts",
        "2",
        "--top-k",
        "1",
        "--tokens",
        "24",
        "--hidden",
        "32",
        "--tile-m",
        "8",
        "--tile-n",
        "16",
        "--dtype",
        "float32",
    )
    # Expert 0 holds 12 rows of rank 1, then 12 of rank 0.
    assert "|11111111|11110000|00000000|" in text
    assert "tile order: 3 bands, each of 2 column tiles" in text
    assert "remote" in text
    assert "local" in text
    assert "segments: 2, 12 rows, 1.5 KiB" in text
    assert "rows 8..11  -> staging 8..11" in text


def test_huge_tiles_and_worlds_are_drawn(plan):
    text = plan("--tile-m", "2147483647", "--layout", "owner_aligned", "--tokens", "64")
    assert "| ... " not in text
    text = plan("--ranks", "64", "--experts", "128", "--tokens", "128", "--rank", "40")
    assert "rank 40 of 64" in text
    assert "#" in text  # owners beyond the digits and letters


def test_parts_are_cut_unless_all_is_asked_for(plan):
    short = plan(*PAPER, "--limit", "2")
    assert "... 62 more experts" in short
    assert "more segments" in short
    assert "more" not in plan("--experts", "16", "--tokens", "256", "--all")


def test_json_holds_the_whole_plan(plan):
    report = json.loads(
        plan("--experts", "8", "--tokens", "64", "--top-k", "2", "--json", "--tile-arrays")
    )
    assert report["valid_rows"] == sum(run["row_count"] for run in report["runs"])
    assert len(report["order"]) == report["bands"]
    assert {"peer", "row_begin", "remote_row"} <= set(report["segments"][0])
    columns = report["tile_arrays"]
    assert len({len(column) for column in columns.values()}) == 1
    assert sum(columns["valid_rows"]) == report["valid_rows"] * report["tiles_n"]


def test_tile_arrays_are_listed(plan):
    text = plan("--experts", "8", "--tokens", "16", "--top-k", "2", "--tile-arrays", "--limit", "3")
    assert "remote_offset" in text
    assert "more entries" in text


def test_any_rank_of_any_routing_can_be_drawn(plan, real_trace: Path):
    text = plan("--routing", str(real_trace), "--trace-layer", "25", "--rank", "3", "--top-k", "2")
    assert "rank 3 of 4" in text
    assert plan("--routing", "one_expert", "--rank", "1", "--ranks", "2").count("no rows") > 1
    assert "nothing to send" in plan("--tokens", "0")
    assert "n/a" in plan("--tokens", "0")
    assert "no experts on this rank" in plan(
        "--ranks", "40", "--experts", "3", "--rank", "39", "--top-k", "2"
    )


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_pictures_are_written_whole(plan, tmp_path: Path, suffix: str):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plan{suffix}"
    plan("--experts", "8", "--tokens", "64", "--picture", str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_size > 5000


H200 = ["--explain", "--gpu", "NVIDIA H200", "--hidden", "8192"]


def test_explained_are_the_choices_and_when_what_would_happen(plan):
    arguments = ["--ranks", "4", "--experts", "64", "--tokens", "8192", "--top-k", "2", *H200]
    explained = json.loads(plan(*arguments, "--json"))["explained"]
    moments = ["first_band_us", "first_rows_leave_us", "last_rows_ready_us", "last_rows_left_us"]
    times = [explained[name] for name in moments]
    assert times == sorted(times)
    assert times[-1] <= explained["overlapped_us"] < explained["serial_us"]
    assert explained["gemm_end_us"] <= explained["overlapped_us"]
    text = plan(*arguments)
    assert "predicted with rates measured on NVIDIA H200" in text
    assert f"SMs that ship rows: {explained['comm_sms']}" in text
    assert "tile: 128 x 128, groups of 8; measured on NVIDIA H200" in text
    assert "this plan: 64 x 128" in plan(*arguments, "--tile-m", "64")


def test_explained_is_also_a_rank_that_sends_nothing(plan):
    for ranks, tokens in (("1", "64"), ("2", "0")):
        arguments = ["--ranks", ranks, "--experts", "4", "--tokens", tokens, "--top-k", "2", *H200]
        explained = json.loads(plan(*arguments, "--json"))["explained"]
        assert explained["comm_sms"] == 1
        assert explained["first_rows_leave_us"] is None
        assert "the operator ends" in plan(*arguments)


def test_float32_is_not_explained(capsys: pytest.CaptureFixture):
    assert cli.main(["plan", *PAPER, "--dtype", "float32", *H200]) == 2
    assert "bfloat16 and float16 were measured, not of float32" in capsys.readouterr().err
