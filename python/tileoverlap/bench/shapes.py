"""Whose layers are measured: sizes by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["SERVED", "SWEEP", "Shape", "find_shapes"]


@dataclass(frozen=True)
class Shape:
    """One layer's return path."""

    name: str
    world: int
    experts: int
    """Of all ranks."""
    top_k: int
    tokens: int
    """On each rank."""
    n: int
    """Elements of a returned row (hidden size)."""
    k: int
    """Inner size of the experts."""

    @property
    def experts_a_rank(self) -> int:
        return self.experts // self.world

    @property
    def rows_a_rank(self) -> int:
        """Copies that a rank computes, where the routing is balanced."""
        return self.tokens * self.top_k


def _sweep() -> list[Shape]:
    """The paper's Table 2: W = 4, top-2, K = 2048."""
    return [
        Shape(f"M={2 * tokens},N={n},E={e}", 4, 4 * e, 2, tokens, n, 2048)
        for tokens in (8192, 16384)
        for n in (4096, 8192)
        for e in (4, 8, 16, 32, 64)
    ]


def _served() -> list[Shape]:
    """Layers that are served today, on 8 ranks: prefill and decode."""
    sizes = {
        # hidden, inner, experts, top-k
        "Qwen3-30B-A3B": (2048, 768, 128, 8),
        "Qwen3-235B-A22B": (4096, 1536, 128, 8),
        "GLM-4.5": (5120, 1536, 160, 8),
        "DeepSeek-V3": (7168, 2048, 256, 8),
        "Kimi-K2": (7168, 2048, 384, 8),
        "gpt-oss-120b": (2880, 2880, 128, 4),
        "OLMoE": (2048, 1024, 64, 8),
        "Mixtral-8x7B": (4096, 14336, 8, 2),
    }
    return [
        Shape(f"{name},{phase}", 8, experts, top_k, tokens, hidden, inner)
        for name, (hidden, inner, experts, top_k) in sizes.items()
        for phase, tokens in (("prefill", 8192), ("decode", 128))
    ]


SWEEP: Sequence[Shape] = _sweep()
SERVED: Sequence[Shape] = _served()
_BY_SET = {"sweep": SWEEP, "served": SERVED}


def find_shapes(text: str) -> list[Shape]:
    """Shapes by name, separated by semicolons: sweep, served, a part of a shape's name
    ("E=16", "prefill"), or ROWS,EXPERTS,K,N of one rank of four.

    Raises:
        ValueError: a part that names none.
    """
    found: list[Shape] = []
    for part in filter(None, (part.strip() for part in text.split(";"))):
        if part in _BY_SET:
            found += _BY_SET[part]
            continue
        named = [shape for shape in (*SWEEP, *SERVED) if _matches(shape.name, part)]
        found += named or [_sized(part)]
    return found


def _matches(name: str, part: str) -> bool:
    """Whether all comma-separated words of `part` are words of the name."""
    return set(part.split(",")) <= set(name.split(","))


def _sized(part: str) -> Shape:
    try:
        rows, experts, k, n = (int(number) for number in part.split(","))
    except ValueError:
        raise ValueError(
            f"no shape is named '{part}': sweep, served, words of a name such as M=16384,E=16 or "
            "DeepSeek-V3,prefill, or ROWS,EXPERTS,K,N"
        ) from None
    return Shape(f"M={rows},N={n},E={experts},K={k}", 4, 4 * experts, 1, rows, n, k)
