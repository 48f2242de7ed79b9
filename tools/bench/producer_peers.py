"""What others take for the GEMM that gpu_bench times: prints the rows of its producer part.

    producer_peers.py [--json FILE] [--ours FILE] [--repetitions N]

Peers: a loop of cuBLAS calls over experts, eager and captured in a graph, and torch's grouped_mm;
beside them an 8192^3 matrix product as the device's rate. --ours: gpu_bench's JSON of the same
machine; prints the ratio to the best peer.
"""

from __future__ import annotations

import argparse
import json
import statistics

import torch

ROWS = [(rows, experts) for rows in (16384, 32768) for experts in (4, 16, 64)]
DEPTH, WIDTH = 2048, 8192


def grouped_mm(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    function = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    return function(a, b, offs=offsets)


def times_us(variants: dict, repetitions: int) -> dict[str, float]:
    """Median of each variant, the variants in turn within each repetition."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for i in range(10 + repetitions):
        for name, run in variants.items():
            begin.record()
            run()
            end.record()
            end.synchronize()
            if i >= 10:
                times[name].append(1e3 * begin.elapsed_time(end))
    return {name: statistics.median(values) for name, values in times.items()}


def captured(run):
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def measure(rows: int, experts: int, repetitions: int) -> dict[str, float]:
    a = torch.rand(rows, DEPTH, device="cuda", dtype=torch.bfloat16) * 2 - 1
    b = torch.rand(experts, WIDTH, DEPTH, device="cuda", dtype=torch.bfloat16) * 2 - 1
    d = torch.empty(rows, WIDTH, device="cuda", dtype=torch.bfloat16)
    share = rows // experts
    offsets = torch.arange(share, rows + 1, share, device="cuda", dtype=torch.int32)
    square = torch.rand(8192, 8192, device="cuda", dtype=torch.bfloat16) * 2 - 1

    def loop() -> None:
        for e in range(experts):
            part = slice(e * share, (e + 1) * share)
            torch.mm(a[part], b[e].t(), out=d[part])

    variants = {
        "loop": loop,
        "loop_in_graph": captured(loop),
        "grouped_mm": lambda: grouped_mm(a, b.transpose(1, 2), offsets),
        "square": lambda: torch.mm(square, square),
    }
    us = times_us(variants, repetitions)
    flops = 2.0 * rows * DEPTH * WIDTH
    rates = {name: flops / time * 1e-6 for name, time in us.items()}
    rates["square"] = 2.0 * 8192**3 / us["square"] * 1e-6
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--ours")
    parser.add_argument("--repetitions", type=int, default=50)
    options = parser.parse_args()
    ours = {}
    if options.ours:
        with open(options.ours) as file:
            found = [row for row in json.load(file)["rows"] if row["row"] == "producer"]
        ours = {(row["rows"], row["experts"]): row for row in found}
    result = []
    for rows, experts in ROWS:
        rates = measure(rows, experts, options.repetitions)
        row = {"rows": rows, "experts": experts, **rates}
        line = "  ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
        mine = ours.get((rows, experts))
        if mine:
            best = max(rate for name, rate in rates.items() if name != "square")
            row |= {name: mine[name] for name in ("flags_tflops", "plain_tflops")}
            row["ours_to_best_peer"] = mine["flags_tflops"] / best
            line += f"  ours {mine['flags_tflops']:.0f}  ratio {row['ours_to_best_peer']:.3f}"
        print(f"rows {rows} experts {experts}: {line} TFLOP/s", flush=True)
        result.append(row)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"torch": torch.__version__, "rows": result}, file, indent=1)


if __name__ == "__main__":
    main()
