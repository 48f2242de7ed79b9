"""What others use for the experts' GEMM, on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from tileoverlap.bench.loop_back import Tensors

__all__ = ["captured", "cublas_loop", "expert_products", "producer_peers", "square"]

Launch = Callable[[], Any]
_SQUARE = 8192
_DEEP_GEMM_ALIGNMENT = 128


def captured(torch: Any, run: Launch) -> Launch:
    """`run` as a CUDA graph. Keeps `run`, and with it the memory that the graph works on."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay(keep: Launch = run) -> None:
        del keep
        graph.replay()

    return replay


def expert_products(torch: Any, tensors: Tensors, output: Any) -> list[Launch]:
    """A cuBLAS call for each expert that has rows; rows and output are packed."""
    return [
        partial(
            torch.mm,
            tensors.packed[begin:end],
            tensors.weights[expert].t(),
            out=output[begin:end],
        )
        for expert, (begin, end) in enumerate(tensors.spans)
        if end > begin
    ]


def cublas_loop(torch: Any, tensors: Tensors, output: Any) -> Launch:
    """One cuBLAS call an expert, over packed rows."""
    products = expert_products(torch, tensors, output)

    def run() -> None:
        for product in products:
            product()

    return run


def producer_peers(torch: Any, tensors: Tensors) -> dict[str, Launch]:
    """By name."""
    loop = cublas_loop(torch, tensors, tensors.packed_output())
    peers = {"cublas_loop": loop, "cublas_graph": captured(torch, loop)}
    for make in (_grouped_mm, _deep_gemm):
        peers |= make(torch, tensors)
    return peers


def _grouped_mm(torch: Any, tensors: Tensors) -> dict[str, Launch]:
    function = getattr(torch.nn.functional, "grouped_mm", None) or getattr(
        torch, "_grouped_mm", None
    )
    if function is None or tensors.packed.dtype != torch.bfloat16:
        return {}
    ends = torch.tensor(tensors.ends, device="cuda", dtype=torch.int32)
    weights = tensors.weights.transpose(1, 2)
    return {"grouped_mm": lambda: function(tensors.packed, weights, offs=ends)}


def _deep_gemm(torch: Any, tensors: Tensors) -> dict[str, Launch]:
    """Its groups begin at multiples of 128 rows: where ours do not, rows are padded for it."""
    try:
        deep_gemm = import_module("deep_gemm")
    except (ImportError, OSError):
        return {}
    if tensors.packed.dtype != torch.bfloat16:
        return {}
    step = _DEEP_GEMM_ALIGNMENT
    padded = [-(-(end - begin) // step) * step for begin, end in tensors.spans]
    experts = torch.cat([torch.full((count,), e) for e, count in enumerate(padded)]).to(
        device="cuda", dtype=torch.int32
    )
    rows = torch.zeros((len(experts), tensors.packed.shape[1]), device="cuda", dtype=torch.bfloat16)
    row = 0
    for (begin, end), count in zip(tensors.spans, padded, strict=True):
        rows[row : row + end - begin] = tensors.packed[begin:end]
        row += count
    output = torch.empty(
        (len(experts), tensors.weights.shape[1]), device="cuda", dtype=torch.bfloat16
    )
    run = partial(
        deep_gemm.m_grouped_bf16_gemm_nt_contiguous, rows, tensors.weights, output, experts
    )
    try:
        run()
        torch.cuda.synchronize()
    except Exception:  # whatever its compiler or loader says: it is not there
        return {}
    return {"deep_gemm": run}


def square(torch: Any, dtype: str) -> tuple[Launch, float]:
    """A large matrix product as the rate that the device has now, and its operations."""
    kind = getattr(torch, dtype)
    a, b = (
        torch.empty((_SQUARE, _SQUARE), device="cuda", dtype=kind).uniform_(-1, 1) for _ in range(2)
    )
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out), 2.0 * _SQUARE**3
