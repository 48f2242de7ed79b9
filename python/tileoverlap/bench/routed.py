"""The tensors of one layer's call, of all ranks, on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tileoverlap.bench.router import routing_of
from tileoverlap.bench.shapes import Shape
from tileoverlap.placement import Placement

__all__ = ["Call", "input_width", "make_call", "up_rows"]


def input_width(shape: Shape, expert: str) -> int:
    """Elements of a token."""
    return shape.k if expert == "single" else shape.n


def up_rows(shape: Shape, expert: str) -> int:
    """Output rows of an expert's first projection; 0 where it has none."""
    return {"single": 0, "gelu": shape.k, "silu_gate": 2 * shape.k}[expert]


@dataclass(frozen=True)
class Call:
    """Rows lie rank by rank, as many tokens T on each of W ranks; experts lie in their order, those
    of a rank side by side."""

    placement: Placement
    expert: str
    """"single", "gelu" or "silu_gate", as for prepare_layer."""
    x: Any
    """[W * T, input width]"""
    ids: Any
    """[W * T, top_k] int32"""
    weights: Any
    """[W * T, top_k] float32; of each token they sum to 1."""
    up: Any | None
    """[experts, up rows, hidden]; None for "single"."""
    down: Any
    """[experts, hidden, inner]"""
    generator: Any
    """Of everything random."""

    @property
    def tokens(self) -> int:
        """On each rank."""
        return len(self.x) // self.placement.world

    def of_rank(self, rank: int) -> dict[str, Any]:
        """What forward() takes on this rank, but for the output."""
        mine = slice(rank * self.tokens, (rank + 1) * self.tokens)
        hosted = self.placement.experts_of(rank)
        experts = slice(hosted.start, hosted.stop)
        return {
            "x": self.x[mine],
            "topk_ids": self.ids[mine],
            "topk_weights": self.weights[mine],
            "up": None if self.up is None else self.up[experts],
            "down": self.down[experts],
        }

    def new_output(self) -> Any:
        """[W * T, hidden]"""
        return self.x.new_empty((len(self.x), self.down.shape[1]))

    def draw(self) -> None:
        """New tokens and weights of slots, in place."""
        self.x.uniform_(-1, 1, generator=self.generator)
        self.weights.uniform_(0.1, 1, generator=self.generator)
        self.weights.div_(self.weights.sum(dim=1, keepdim=True))


def make_call(
    torch: Any, shape: Shape, mode: str, *, expert: str, dtype: str, device: str = "cuda"
) -> Call:
    """A random call in a router mode. Weights are scaled so that rows keep their size."""
    kind = getattr(torch, dtype)
    generator = torch.Generator(device=device).manual_seed(1)

    def random(*sizes: int) -> Any:
        scale = sizes[-1] ** -0.5
        values = torch.empty(sizes, device=device, dtype=kind)
        return values.uniform_(-scale, scale, generator=generator)

    placement = Placement.even(world=shape.world, experts=shape.experts)
    routed = routing_of(shape, placement, mode)
    ids = torch.from_numpy(np.concatenate([part.ids for part in routed])).to(device)
    rows = up_rows(shape, expert)
    call = Call(
        placement,
        expert,
        torch.empty((len(ids), input_width(shape, expert)), device=device, dtype=kind),
        ids,
        torch.empty(ids.shape, device=device, dtype=torch.float32),
        random(shape.experts, rows, shape.n) if rows else None,
        random(shape.experts, shape.n, shape.k),
        generator,
    )
    call.draw()
    return call
