"""tileoverlap simulate and rates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tileoverlap import cli, routing
from tileoverlap.bench.loop_back import Choice, rank_plan, routed_counts
from tileoverlap.bench.rates import measured_gemms, table_of
from tileoverlap.bench.shapes import find_shapes
from tileoverlap.counts import count_routes
from tileoverlap.placement import Placement
from tileoverlap.predict import LinkRates, Operator, gpu_rates, predict

H200 = ["--gpu", "NVIDIA H200"]
SMALL = ["--ranks", "4", "--experts", "8", "--top-k", "2", "--tokens", "1024", *H200]


@pytest.fixture
def simulate(capsys: pytest.CaptureFixture[str]):
    """Runs the command and returns what it printed."""

    def run(*arguments: str) -> str:
        assert cli.main(["simulate", *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


def test_the_report_says_what_is_best(simulate):
    text = simulate(*SMALL)
    report = json.loads(simulate(*SMALL, "--json"))
    best = report["best_comm_sms"]
    assert f"best with {best} SMs" in text
    times = {split["comm_sms"]: split["overlapped_us"] for split in report["splits"]}
    assert times[best] <= 1.002 * min(times.values())
    marked = [line for line in text.splitlines() if line.startswith("*")]
    assert [line.split()[1] for line in marked] == [str(best)]
    assert report["rows_of_rank"] == [2048] * 4
    assert "rates measured on NVIDIA H200" in text


def test_only_what_is_asked_for_is_shown(simulate):
    report = json.loads(simulate(*SMALL, "--comm-sms", "3,2,3", "--json"))
    assert [split["comm_sms"] for split in report["splits"]] == [2, 3]


def test_a_network_slows_what_crosses_it(simulate):
    def copy_us(*links: str) -> float:
        report = json.loads(simulate(*SMALL, *links, "--comm-sms", "8", "--json"))
        return float(report["splits"][0]["copy_us"])

    one_domain = copy_us()
    assert copy_us("--domain", "2") > 2 * one_domain
    assert copy_us("--domain", "2", "--network-gbs", "25") > 1.8 * copy_us("--domain", "2")
    assert copy_us("--link-gbs", "100") > one_domain


def test_many_ranks_are_simulated_in_seconds(simulate):
    arguments = ["--ranks", "512", "--experts", "1024", "--top-k", "8", "--tokens", "256", *H200]
    text = simulate(*arguments, "--domain", "8", "--routing", "stress_skew", "--comm-sms", "8")
    assert "512 ranks, 1024 experts" in text
    assert "domains of 8 ranks" in text


def test_a_trace_is_simulated(simulate):
    report = json.loads(simulate("--routing", "quick", "--comm-sms", "4", "--json", *H200))
    assert report["ranks"] == 4
    assert len(set(report["rows_of_rank"])) > 1


def test_the_picture_is_drawn(simulate, tmp_path: Path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "simulated.png"
    simulate(*SMALL, "--comm-sms", "2,4", "--picture", str(picture))
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_an_unknown_gpu_takes_the_nearest_rates(simulate):
    text = simulate(*SMALL[:-1], "Some GPU", "--gpu-sms", "66", "--comm-sms", "4")
    assert "66 SMs of Some GPU (rates as on NVIDIA H200, by SMs)" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--comm-sms", "few"], "argument --comm-sms: must be numbers, got 'few'"),
        (["--comm-sms", "0"], "comm_sms must be at least 1, got 0"),
        (["--comm-sms", "132"], "comm_sms must lie in 1..131, of 132 SMs, got 132"),
        (["--sms", "200", "--comm-sms", "8"], "sms = 200 of a GPU that has 132"),
        (["--link-gbs", "fast"], "argument --link-gbs: must be a number, got 'fast'"),
        (["--link-gbs", "-1"], "argument --link-gbs: must lie in 0..1e9, got -1"),
        (["--domain", "2", "--network-gbs", "0"], "argument --network-gbs: must be above 0"),
        (["--gemm-scale", "0"], "argument --gemm-scale: must be above 0"),
        (["--experts-per-rank", "3"], "argument --experts-per-rank: not together"),
        (["--routing", "stress_skew", "--top-k", "9"], "9 different experts"),
        (["--trace-layer", "3"], "balanced is no trace and has no layers"),
        (["--picture", "a.gif"], "got 'a.gif'"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["simulate", *SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("mode", ["balanced", "one_expert"])
@pytest.mark.parametrize(("experts", "tokens", "top_k"), [(8, 1000, 2), (7, 333, 3), (4, 5, 3)])
def test_counts_without_tokens_are_those_of_the_tokens(
    mode: str, experts: int, tokens: int, top_k: int
):
    placement = Placement.even(world=3, experts=experts)
    routed = routing.route(mode, placement=placement, tokens=tokens, top_k=top_k)
    drawn = routing.draw_counts(mode, placement=placement, tokens=tokens, top_k=top_k)
    expected = count_routes(placement, [part.ids for part in routed])
    assert (drawn.array == expected.array).all()


@pytest.mark.parametrize("mode", ["moderate_skew", "stress_skew"])
@pytest.mark.parametrize("top_k", [1, 2, 6, 16])
def test_drawn_counts_are_as_skewed_as_drawn_tokens(mode: str, top_k: int):
    placement = Placement.even(world=4, experts=16)
    tokens = 20_000
    routed = routing.route(mode, placement=placement, tokens=tokens, top_k=top_k)
    of_tokens = count_routes(placement, [part.ids for part in routed]).array.sum(axis=0)
    drawn = routing.draw_counts(mode, placement=placement, tokens=tokens, top_k=top_k)
    assert (drawn.array.sum(axis=1) == tokens * top_k).all()
    # Chance moves a count of n by its root; the formula is off by a few percent where many of few
    # experts are drawn.
    allowed = 6 * np.sqrt(of_tokens) + 0.06 * of_tokens
    assert (np.abs(drawn.array.sum(axis=0) - of_tokens) < allowed).all()


def test_no_experts_take_no_tokens():
    placement = Placement.even(world=2, experts=0)
    assert routing.draw_counts("balanced", placement=placement, tokens=0, top_k=1).experts == 0
    with pytest.raises(Exception, match="no tokens can be routed without experts"):
        routing.draw_counts("balanced", placement=placement, tokens=1, top_k=1)


# A file as tileoverlap bench writes it, whose times are predictions with known rates.
TRUE = {"ship_share": 0.7, "gemm_slowdown": 0.03, "tile_us": 5.0}


def made_up_row(name: str, comm_sms: int) -> dict[str, Any]:
    gpu = replace(gpu_rates("NVIDIA H200", capability=90, sms=132), **TRUE)  # type: ignore[arg-type]
    (shape,) = find_shapes(name)
    placement, counts = routed_counts(shape, "balanced")
    plan = rank_plan(shape, placement, counts, Choice())
    link = LinkRates(gbs=0.0, latency_us=0.0)
    operator = Operator(
        placement=placement, counts=counts, k=shape.k, n=shape.n, gpu=gpu, link=link
    )
    (split,) = predict(operator, [comm_sms], [plan.rank])
    sizes = {"experts": shape.experts_a_rank, "k": shape.k, "n": shape.n, "tile": (128, 128)}
    part = gpu.gemm_us(bands=plan.bands, **{**sizes, "sms": 132 - comm_sms})
    return {
        "shape": name,
        "mode": "balanced",
        "layout": "compact",
        "link": "hbm",
        "rows": plan.valid_rows,
        "kernel": "sm90a_bfloat16_128x128_pingpong_single",
        "group": 8,
        "bands_per_segment": 1,
        "comm_sms": comm_sms,
        "gemm_us": gpu.gemm_us(bands=plan.bands, **{**sizes, "sms": 132}),
        "part_us": part,
        "copy_us": split.copy_us,
        "copy_gbs": comm_sms * gpu.ship_gbs,
        "b1_us": split.serial_us,
        "ours_graph_us": split.overlapped_us,
    }


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    rows = [
        made_up_row(f"M=16384,N={n},E={experts}", comm_sms)
        for n, experts in ((8192, 16), (8192, 64), (4096, 32))
        for comm_sms in (6, 8, 10)
    ]
    file = tmp_path / "partition.json"
    file.write_text(json.dumps({"data": {"rows": [*rows, {"mode": "balanced"}]}}))
    return file


def test_rates_says_how_far_predictions_are_off_and_fits_them(
    measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert cli.main(["rates", str(measured), *H200, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert len(before["rows"]) == 9
    assert before["errors"]["in_its_clock"]["worst"] > 0.02
    table = tmp_path / "rates.inc"
    arguments = ["rates", str(measured), *H200, "--fit", "--table", str(table)]
    assert cli.main([*arguments, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["errors"]["in_its_clock"]["worst"] < 0.01
    assert after["gpu"]["ship_share"] == pytest.approx(TRUE["ship_share"], abs=0.02)
    assert after["gpu"]["gemm_slowdown"] == pytest.approx(TRUE["gemm_slowdown"], abs=0.01)
    assert '.device = "NVIDIA H200"' in table.read_text()
    # The predicted choice can only be the measured one or worse.
    assert len(after["choices"]) == 3
    for choice in after["choices"]:
        assert choice["best_us"] <= choice["us"] <= 1.01 * choice["best_us"]
    assert cli.main(["rates", str(measured), *H200]) == 0
    text = capsys.readouterr().out
    assert "in its clock: off by" in text
    assert "SMs that ship, by the rates and as measured" in text


def test_the_table_in_the_library_is_what_the_command_writes():
    source = Path(__file__).parent.parent / "src/predict/gpu_rates.inc"
    if not source.exists():
        pytest.skip("the sources are not here")
    assert table_of(gpu_rates("NVIDIA H200", capability=90, sms=132)) == source.read_text()


def test_of_a_shape_the_fastest_gemm_is_taken():
    def row(us: float, tile: str = "128x128") -> dict[str, Any]:
        kernel = f"sm90a_bfloat16_{tile}_pingpong_single"
        return {"rows": 8, "experts": 1, "k": 8, "n": 8, "kernel": kernel, "plain_us": us}

    gemms = measured_gemms([row(3.0), row(2.0), row(5.0, "64x256"), {"copy_us": 1.0}])
    assert [(gemm.tile_m, gemm.tile_n, gemm.us) for gemm in gemms] == [
        (128, 128, 2.0),
        (64, 256, 5.0),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "is no JSON"),
        ("[1]", "it has no rows"),
        ('{"rows": [1]}', "it has no rows"),
        ('{"rows": [{"mode": "balanced"}]}', "no row of tileoverlap bench operator"),
    ],
)
def test_files_of_another_kind_are_refused(
    content: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    file = tmp_path / "some.json"
    if content is not None:
        file.write_text(content)
    assert cli.main(["rates", str(file)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "some.json" in error
    assert error.count("\n") == 1


def test_a_table_needs_a_fit(measured: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    table = tmp_path / "t.inc"
    assert cli.main(["rates", str(measured), "--table", str(table)]) == 2
    assert "--table: only together with --fit" in capsys.readouterr().err
    assert not table.exists()
