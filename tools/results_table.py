"""Prints the README's table of speeds from results/*.json: results_table.py [--write]

--write puts it into the README.
"""

from __future__ import annotations

import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMM_SMS = 8  # of the rows shown: about the rate of NVLink 4
BEGIN, END = "<!-- speeds: tools/results_table.py -->", "<!-- end of speeds -->"


def result(name: str) -> dict:
    return json.loads((ROOT / "results" / f"{name}.json").read_text())


def table() -> str:
    bench, peers = result("bench"), result("producer_peers")
    lines = [
        f"On one {bench['device']}, bfloat16, K = 2048, N = 8192, in one run at commit "
        f"{bench['commit']} (`{bench['command']}`,",
        f"`{peers['command']}`); TFLOP/s of valid rows, medians:",
        "",
        "| rows, experts | ours, with flags | without | cuBLAS loop, in a graph | "
        "grouped_mm | to the best peer |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in peers["data"]["rows"]:
        lines.append(
            f"| {row['rows']}, {row['experts']} | {row['flags_tflops']:.0f} | "
            f"{row['plain_tflops']:.0f} | {row['loop']:.0f}, {row['loop_in_graph']:.0f} | "
            f"{row['grouped_mm']:.0f} | {row['ours_to_best_peer']:.2f} |"
        )
    lines += [
        "",
        f"The operator (GEMM and return, W = 4) on a loop-back link, that is to memory of the same "
        f"GPU, with {COMM_SMS} SMs that ship,",
        "the same link for serial and overlapped; bound = (GEMM + copy) / max(GEMM, copy):",
        "",
        "| rows, experts, N | GEMM alone | copy alone | serial | overlapped | over serial | "
        "of the bound |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in bench["data"]["rows"]:
        if row["row"] != "operator" or row["comm_sms"] != COMM_SMS:
            continue
        lines.append(
            f"| {row['rows']}, {row['experts']}, {row['n']} | {row['gemm_us']:.0f} us | "
            f"{row['copy_us']:.0f} us, {row['copy_gbs']:.0f} GB/s | {row['serial_us']:.0f} us | "
            f"{row['overlapped_us']:.0f} us | {row['over_serial']:.2f} | {row['reached']:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    if sys.argv[1:] != ["--write"]:
        print(table())
        return
    readme = ROOT / "README.md"
    text = readme.read_text()
    before, rest = text.split(BEGIN)
    readme.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
