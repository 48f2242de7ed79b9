"""Prints the README's table of speeds from results/*.json: results_table.py [--write]

--write puts it into the README.
"""

from __future__ import annotations

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- speeds: tools/results_table.py -->", "<!-- end of speeds -->"
PEERS = ("cublas_loop", "cublas_graph", "grouped_mm", "deep_gemm")


def result(name: str) -> dict:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def where(name: str, saved: dict) -> str:
    return f"`{saved['command']}` at {saved['commit']}, [results/{name}.json](results/{name}.json)"


def producer() -> list[str]:
    saved = result("producer")
    rows, summary = saved["data"]["rows"], saved["data"]["summary"]
    lines = [
        f"The GEMM on one {saved['device']}, {rows[0]['dtype']}, K = {rows[0]['k']}, balanced "
        "routing; TFLOP/s of copies, medians",
        f"({where('producer', saved)}):",
        "",
        "| rows, N, experts | with flags | without | cuBLAS loop, in a graph | grouped_mm | "
        "DeepGEMM | 8192^3 | to the best |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        loop, graph, grouped, deep = (
            f"{row[f'{name}_tflops']:.0f}" if f"{name}_tflops" in row else "-" for name in PEERS
        )
        lines.append(
            f"| {row['rows']}, {row['n']}, {row['experts']} | {row['flags_tflops']:.0f} | "
            f"{row['plain_tflops']:.0f} | {loop}, {graph} | {grouped} | {deep} | "
            f"{row['square_tflops']:.0f} | {row['to_best_peer']:.2f} |"
        )
    lines += [
        "",
        f"Geometric means: {summary['to_best_peer']:.3f} of the best peer (worst "
        f"{summary['worst_to_best_peer']:.3f}); flags cost "
        f"{summary['flags_over_plain'] - 1:.1%}; with {rows[0]['spared_sms']} SMs less, "
        f"{summary['spared_to_share']:.3f} of the share that is left.",
    ]
    if "other_type" in summary:
        lines.append(
            f"{rows[0]['other_dtype']} reaches {summary['other_type']:.3f} of {rows[0]['dtype']}."
        )
    return lines


def operator() -> list[str]:
    saved = result("operator")
    lines = [
        "The operator (GEMM and return, W = 4) on a loop-back link, that is to memory of the same "
        "GPU; times in us, the same link for all",
        f"({where('operator', saved)}):",
        "",
        "| rows, N, experts, routing | SMs that return | GEMM | return | cuBLAS loop, then return "
        "| GEMM, then return, in a graph | in 2 or 4 chunks | overlapped | over these | "
        "of the bound | stored by the GEMM | over these | of the bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in saved["data"]["rows"]:
        chunked = min(row[name] for name in ("b2_2_us", "b2_4_us") if name in row)
        lines.append(
            f"| {row['rows']}, {row['n']}, {row['experts']}, {row['mode']} | {row['comm_sms']} | "
            f"{row['gemm_us']:.0f} | {row['copy_us']:.0f} ({row['copy_gbs']:.0f} GB/s) | "
            f"{row['b0_us']:.0f} | {row['b1_us']:.0f} | {chunked:.0f} | {row['best_us']:.0f} | "
            f"{row['over_b0']:.2f}, {row['over_b1']:.2f}, {row['over_b2']:.2f} | "
            f"{row['reached']:.1%} of {row['bound']:.2f} | "
            f"{stored(row, chunked)}"
        )
    return lines


def stored(row: dict, chunked: float) -> str:
    """Where the GEMM stores rows at their owners itself; empty where that was not measured."""
    if "stored_us" not in row:
        return "- | - | - |"
    us = min(row["stored_us"], row["stored_graph_us"])
    return (
        f"{us:.0f} | {row['b0_us'] / us:.2f}, {row['stored_over_b1']:.2f}, {chunked / us:.2f} | "
        f"{row['stored_reached']:.1%} |"
    )


def main() -> None:
    table = "\n".join([*producer(), "", *operator()])
    if sys.argv[1:] != ["--write"]:
        print(table)
        return
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
