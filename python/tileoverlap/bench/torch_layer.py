"""The layer in torch, by the definition alone: to compare results with, and to compare times
with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tileoverlap.bench.routed import Call
from tileoverlap.reference import TOLERANCES, Comparison

__all__ = ["compare", "loop_layer", "reference_layer"]

Launch = Callable[[], Any]
_TOKENS = 4096  # that are compared at a time


def reference_layer(torch: Any, call: Call) -> Any:
    """float64 [W * T, hidden]: tileoverlap.reference.layer on the device."""
    out = torch.zeros((len(call.x), call.down.shape[1]), device=call.x.device, dtype=torch.float64)
    for expert in range(call.placement.experts):
        tokens, slots = (call.ids == expert).nonzero(as_tuple=True)
        if len(tokens) == 0:
            continue
        rows = call.x[tokens].double()
        if call.up is not None:
            rows = _activated(torch, call.expert, rows @ call.up[expert].double().t())
        rows = rows @ call.down[expert].double().t()
        # index_add: a token may name the expert twice.
        out.index_add_(0, tokens, rows * call.weights[tokens, slots].double()[:, None])
    return out


def compare(torch: Any, got: Any, wanted: Any, dtype: str) -> Comparison:
    """tileoverlap.reference.compare on the device: [tokens, hidden] each, `wanted` float64."""
    per_token = squares = all_squares = 0.0
    for begin in range(0, len(wanted), _TOKENS):
        y = wanted[begin : begin + _TOKENS]
        d = (got[begin : begin + _TOKENS].double() - y).abs()
        d[~torch.isfinite(d)] = float("inf")
        # 0 / 0: a token without copies, which is zero as it must be.
        by_token = (d.amax(dim=1) / y.abs().amax(dim=1)).nan_to_num(nan=0.0, posinf=float("inf"))
        per_token = max(per_token, float(by_token.max()))
        squares += float(d.square().sum())
        all_squares += float(y.square().sum())
    with np.errstate(divide="ignore", invalid="ignore"):
        l2 = float(np.sqrt(np.float64(squares) / np.float64(all_squares)))
    l2 = 0.0 if np.isnan(l2) else l2
    limit = TOLERANCES[dtype]
    ok = per_token <= limit.per_token and l2 <= limit.relative_l2
    return Comparison(per_token, l2, ok)


def loop_layer(torch: Any, call: Call, out: Any) -> Launch:
    """All ranks' experts on the whole device, a matrix product an expert and projection (FastMoE's
    loop), written to `out`.

    Rows are gathered and brought back by one indexing each, inside the device's memory: there is no
    link. Who goes where is known beforehand, and no rank waits for another. Every token must have
    all its copies.
    """
    ids = call.ids.reshape(-1).long()
    order = ids.argsort(stable=True)
    token_of = order // call.ids.shape[1]
    place_of = order.argsort()
    ends = torch.bincount(ids, minlength=call.placement.experts).cumsum(0).tolist()
    spans = [
        (expert, begin, end)
        for expert, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True))
        if end > begin
    ]
    tokens, top_k = call.ids.shape
    packed = call.x.new_empty((len(ids), call.x.shape[1]))
    rows = call.x.new_empty((len(ids), call.down.shape[1]))
    returned = torch.empty_like(rows)
    projected = None if call.up is None else call.x.new_empty((len(ids), call.up.shape[1]))

    def multiply(source: Any, weights: Any, target: Any) -> None:
        for expert, begin, end in spans:
            torch.mm(source[begin:end], weights[expert].t(), out=target[begin:end])

    def run() -> None:
        torch.index_select(call.x, 0, token_of, out=packed)
        between = packed
        if call.up is not None:
            multiply(packed, call.up, projected)
            between = _activated(torch, call.expert, projected)
        multiply(between, call.down, rows)
        torch.index_select(rows, 0, place_of, out=returned)
        weights = call.weights.to(rows.dtype).view(tokens, 1, top_k)
        torch.bmm(weights, returned.view(tokens, top_k, -1), out=out.view(tokens, 1, -1))

    return run


def _activated(torch: Any, expert: str, rows: Any) -> Any:
    functional = torch.nn.functional
    if expert == "gelu":
        return functional.gelu(rows)
    gate, value = rows.chunk(2, dim=1)
    return functional.silu(gate) * value
