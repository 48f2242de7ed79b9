"""What benchmarks do without a GPU: shapes by name, times, summaries, pictures, refusals."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tileoverlap as to
from tileoverlap import _core
from tileoverlap.bench import plots
from tileoverlap.bench.loop_back import LINKS, Choice, rank_plan, routed_counts
from tileoverlap.bench.one_gpu import check_fits
from tileoverlap.bench.producer import summarise
from tileoverlap.bench.router import check_mode, mode_name
from tileoverlap.bench.shapes import SERVED, SWEEP, find_shapes
from tileoverlap.bench.tile_table import table_of
from tileoverlap.bench.timing import Timing, Variant, interleaved
from tileoverlap.cli import main


def test_the_sweep_is_the_papers_table():
    assert len(SWEEP) == 20
    assert {shape.rows_a_rank for shape in SWEEP} == {16384, 32768}
    assert {shape.experts_a_rank for shape in SWEEP} == {4, 8, 16, 32, 64}
    assert {(shape.world, shape.top_k, shape.k) for shape in SWEEP} == {(4, 2, 2048)}
    assert len({shape.name for shape in (*SWEEP, *SERVED)}) == len(SWEEP) + len(SERVED)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("sweep", 20),
        ("served", 16),
        ("sweep;served", 36),
        ("M=16384", 10),
        ("M=16384,E=16", 2),
        ("E=16,N=8192,M=32768", 1),
        ("prefill", 8),
        ("DeepSeek-V3,decode; OLMoE", 3),
    ],
)
def test_shapes_have_names(text: str, count: int):
    assert len(find_shapes(text)) == count


def test_a_shape_can_be_given_by_its_sizes():
    (shape,) = find_shapes("4096,8,512,1024")
    assert (shape.rows_a_rank, shape.experts_a_rank, shape.k, shape.n) == (4096, 8, 512, 1024)
    placement, counts = routed_counts(shape, "balanced")
    plan = rank_plan(shape, placement, counts, Choice())
    assert (plan.valid_rows, plan.rank, plan.tile) == (4096, 0, (128, 128))


@pytest.mark.parametrize("text", ["E=17", "1,2,3", "nothing"])
def test_a_shape_that_nobody_knows_is_refused(text: str):
    with pytest.raises(ValueError, match="no shape is named"):
        find_shapes(text)


def test_the_busiest_rank_of_a_skewed_mode_is_measured():
    (shape,) = find_shapes("M=16384,N=4096,E=4")
    placement, counts = routed_counts(shape, "stress_skew")
    rows = [rank_plan(shape, placement, counts, Choice(), rank).valid_rows for rank in range(4)]
    assert rows[0] == max(rows)
    assert rows[0] > 1.4 * np.mean(rows)


def test_the_choices_of_a_real_router_can_be_measured(real_trace: Path):
    (shape,) = find_shapes("M=16384,N=8192,E=16")
    placement, counts = routed_counts(shape, f"{real_trace}:13")
    assert counts.array.sum() == shape.world * shape.tokens * shape.top_k
    rows = [rank_plan(shape, placement, counts, Choice(), rank).valid_rows for rank in range(4)]
    assert rank_plan(shape, placement, counts, Choice()).valid_rows == max(rows)
    assert mode_name(f"{real_trace}:13") == "esft_routing.npz:13"
    (others,) = find_shapes("M=16384,N=8192,E=4")
    with pytest.raises(to.InvalidArgument, match=r"must lie in 0\.\.15"):
        check_mode(f"{real_trace}:13", [shape, others])


def test_the_table_of_tiles_has_the_fastest_and_no_noise():
    def row(shape: str, tile: list[int], group: int, us: float) -> dict[str, Any]:
        return {
            "shape": shape,
            "rows": 64,
            "experts": 2,
            "k": 16,
            "n": 32,
            "tile": tile,
            "group": group,
            "flags_us": us,
        }

    rows = [
        row("a", [128, 128], 8, 10.0),
        row("a", [64, 128], 4, 9.0),
        row("b", [128, 128], 8, 10.0),
        row("b", [128, 256], 8, 9.95),
        row("b", [128, 128], 4, 11.0),
    ]
    gpu = to.CudaDevice(0, "A GPU", (9, 0), 132, 1 << 37, ((128, 128),))
    lines = table_of(rows, gpu).splitlines()
    assert [line for line in lines if not line.startswith("//")] == [
        '{"A GPU", 90, 64, 2, 16, 32, 64, 128, 4},',
        '{"A GPU", 90, 64, 2, 16, 32, 128, 128, 8},',
    ]


def test_a_tile_is_chosen_by_shape_and_gpu():
    gpu = to.CudaDevice(0, "NVIDIA H200", (9, 0), 132, 1 << 37, ((128, 128),))
    few = to.choose_tile(gpu, dtype="bfloat16", rows=1024, experts=32, k=2048, n=7168)
    assert few.tile[0] == 64
    assert few.source == "measured on NVIDIA H200"
    other = gpu._replace(name="another", capability=(8, 0))
    choice = to.choose_tile(other, dtype="bfloat16", rows=1024, experts=32, k=2048, n=7168)
    assert choice == ((128, 128), 8, "rule")
    with pytest.raises(to.InvalidArgument, match="experts must be at least 1"):
        to.choose_tile(gpu, dtype="bfloat16", rows=1024, experts=0, k=2048, n=7168)


class FakeTorch:
    """A GPU whose clock moves by what is launched."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        fake = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = fake.now_ms

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Any) -> float:
                return float(end.at - self.at)

        class Cuda:
            pass

        self.cuda = Cuda()
        self.cuda.Event = Event  # type: ignore[attr-defined]

    def work(self, ms: float) -> None:
        self.now_ms += ms


def test_only_bodies_are_timed_and_warm_ups_are_left_out():
    torch = FakeTorch()
    calls: list[str] = []
    variants = {
        "short": Variant(lambda: (calls.append("short"), torch.work(1.0))),
        "long": Variant(lambda: (calls.append("long"), torch.work(3.0)), lambda: torch.work(100.0)),
    }
    times = interleaved(torch, variants, repetitions=20, warm_ups=5)
    assert times == {"short": Timing(1e3, 1e3, 1e3), "long": Timing(3e3, 3e3, 3e3)}
    assert len(calls) == 2 * 25
    # Each repetition has every variant once, in an order that changes.
    pairs = [tuple(calls[i : i + 2]) for i in range(0, len(calls), 2)]
    assert set(pairs) == {("short", "long"), ("long", "short")}


def test_a_timing_has_percentiles():
    timing = Timing.of([float(value) for value in range(1, 102)])
    assert (timing.median, timing.p10, timing.p90) == (51.0, 11.0, 91.0)


ROW = {
    "shape": "M=1,N=2,E=3",
    "flags_us": 101.0,
    "plain_us": 100.0,
    "flags_tflops": 600.0,
    "plain_tflops": 606.0,
    "spared_tflops": 540.0,
    "square_tflops": 750.0,
    "sms": 100,
    "spared_sms": 10,
}


def test_a_summary_has_geometric_means():
    rows = [
        {**ROW, "to_best_peer": 1.0},
        {**ROW, "to_best_peer": 1.21, "flags_us": 100.0},
    ]
    summary = summarise(rows)
    assert summary["to_best_peer"] == pytest.approx(1.1)
    assert summary["worst_to_best_peer"] == 1.0
    assert summary["flags_over_plain"] == pytest.approx(1.01**0.5)
    assert summary["spared_to_share"] == pytest.approx(1.0)
    assert summary["to_square"] == pytest.approx(0.8)
    assert "to_best_peer" not in summarise([ROW])


OPERATOR_ROW = {
    "shape": "M=1",
    "mode": "balanced",
    "layout": "compact",
    "comm_sms": 8,
    **{f"{name}_us": 1.0 for name in ("part", "copy", "ours", "b0", "b1")},
}
LAYER_ROW = {
    "shape": "M=1",
    "mode": "balanced",
    "layout": "compact",
    **{f"{name}_us": 1.0 for name in ("torch_loop", "serial", "b1", "ours", "ours_graph")},
}


@pytest.mark.parametrize(
    ("what", "rows"),
    [
        ("producer", [ROW]),
        ("tune", [ROW]),
        ("transport", [{"bytes": 2**20, "sms": 1, "gbs": 50.0}]),
        ("operator", [OPERATOR_ROW]),
        ("experts", [OPERATOR_ROW]),
        ("partition", [OPERATOR_ROW]),
        ("layer", [LAYER_ROW]),
    ],
)
def test_figures_become_a_picture(what: str, rows: list[dict[str, Any]]):
    pytest.importorskip("matplotlib")
    stream = io.BytesIO()
    plots.draw({"what": what, "gpu": "a GPU", "rows": rows}, stream, "png")
    assert stream.getvalue().startswith(b"\x89PNG")


needs_no_gpu = pytest.mark.skipif(bool(to.cuda_devices()), reason="wants a machine without a GPU")


@needs_no_gpu
def test_the_command_says_that_there_is_no_gpu(capsys: pytest.CaptureFixture[str], tmp_path: Any):
    file = tmp_path / "figures.json"
    assert main(["bench", "producer", "--json", str(file)]) == 2
    assert "bench needs a GPU" in capsys.readouterr().err
    assert not file.exists()


def test_the_command_says_what_can_be_measured(capsys: pytest.CaptureFixture[str]):
    assert main(["bench", "everything"]) == 2
    assert "producer, transport, operator" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["operator", "--link", "nvlink"], "argument --link: must be hbm or pcie, got 'nvlink'"),
        (["producer", "--link", "pcie"], "argument --link: has no meaning for producer"),
        (["producer", "--table", "t.inc"], "argument --table: has no meaning for producer"),
        (["layer", "--link", "pcie"], "only for transport, operator, partition, experts"),
        (["operator", "--expert", "gelu"], "argument --expert: has no meaning for operator"),
        (["layer", "--expert", "relu"], "single, gelu or silu_gate, got 'relu'"),
        (["layer", "--modes", "balanced,fair"], "argument --modes: 'fair' is none of balanced"),
        (["producer", "--modes", "no.npz:1"], "argument --modes: cannot read no.npz"),
        (["correctness", "--shapes", "E=17"], "argument --shapes: no shape is named 'E=17'"),
        (["layer", "--comm-sms", "2,0"], "argument --comm-sms: must be at least 1, got 0"),
        (["correctness", "--plot", "a.png"], "there is no picture of correctness"),
        (["correctness", "--repetitions", "0"], "argument --repetitions: must be at least 1"),
    ],
)
def test_wrong_arguments_are_named_before_a_gpu_is_looked_for(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["bench", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_ranks_that_do_not_fit_on_a_gpu_are_refused_with_their_size():
    (fits,) = find_shapes("M=16384,N=8192,E=16")
    (large,) = find_shapes("DeepSeek-V3,prefill")
    for expert in ("single", "gelu", "silu_gate"):
        check_fits(fits, Choice(), expert=expert, dtype="bfloat16", memory_bytes=140 * 2**30)
    with pytest.raises(to.InvalidArgument, match=r"8 ranks of DeepSeek-V3,prefill need about \d+"):
        check_fits(large, Choice(), expert="silu_gate", dtype="bfloat16", memory_bytes=140 * 2**30)


@needs_no_gpu
def test_a_loop_back_link_needs_a_gpu():
    (shape,) = find_shapes("256,2,64,64")
    placement, counts = routed_counts(shape, "balanced")
    plan = rank_plan(shape, placement, counts, Choice())
    for link in LINKS:
        with pytest.raises(to.Error, match=r"CUDA|cuda"):
            _core.make_loop_back(plan._core, "bfloat16", 64, 0, _core.Link[link])
