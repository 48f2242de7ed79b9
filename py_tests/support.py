"""Worlds of ranks in this process, random routings, and comparison with the reference."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tileoverlap as to

# Long enough for a loaded machine, short enough that a hang fails the test and not the run.
LIMIT_S = 60.0

WRONG_TYPES = (to.InvalidArgument, to.DTypeError)


def on_each_rank(world: int, call: Callable[[int], Any]) -> list[Any]:
    """What call(rank) returns or raises, each in a thread of its own."""
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        try:
            results[rank] = call(rank)
        except Exception as error:
            results[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    return results


def random_ids(
    rng: np.random.Generator, tokens: int, top_k: int, experts: int, *, skipped: float = 0.0
) -> np.ndarray:
    """int64 [tokens, top_k], duplicates in a token allowed; about `skipped` of them -1."""
    if experts == 0:
        return np.full((tokens, top_k), -1, np.int64)
    ids = rng.integers(0, experts, (tokens, top_k))
    ids[rng.random((tokens, top_k)) < skipped] = -1
    return ids


def random_weights(rng: np.random.Generator, ids: np.ndarray) -> np.ndarray:
    """float32, as ids; NaN where there is no copy, which nobody may read."""
    weights = rng.random(ids.shape, np.float32)
    weights[ids == -1] = np.nan
    return weights


def as_dtype(values: np.ndarray, dtype: str) -> Any:
    """float32 values as a tensor of `dtype`."""
    return to.to_bfloat16(values) if dtype == "bfloat16" else values.astype(dtype)


def nan_filled(shape: tuple[int, ...], dtype: str) -> Any:
    if dtype == "bfloat16":
        return to.Bf16Array(np.full(shape, 0x7FC1, np.uint16))
    return np.full(shape, np.nan, dtype)


def bits(values: Any) -> np.ndarray:
    """The bit patterns of a float array or a Bf16Array."""
    if isinstance(values, to.Bf16Array):
        return values.bits
    return np.ascontiguousarray(values).view(f"u{values.dtype.itemsize}")


def same_bits(a: Sequence[Any], b: Sequence[Any]) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(bits(x), bits(y)) for x, y in zip(a, b, strict=True)
    )


def executors(
    world: int,
    *,
    faults: to.CpuFaults | Sequence[to.CpuFaults] | None = None,
    producer_threads: int = 1,
    consumer_threads: int = 1,
) -> list[to.CpuExecutor]:
    by_rank = list(faults) if isinstance(faults, Sequence) else [faults] * world
    return [
        to.CpuExecutor(
            transport,
            producer_threads=producer_threads,
            consumer_threads=consumer_threads,
            faults=by_rank[transport.rank],
        )
        for transport in to.World(world).transports
    ]


class Layer:
    """A layer on all ranks with random weights, driven by one thread. A context manager."""

    def __init__(
        self,
        placement: to.Placement,
        *,
        top_k: int,
        max_tokens: int,
        hidden: int = 16,
        inner: int = 8,
        expert: str = "single",
        dtype: str = "float32",
        seed: int = 0,
        faults: Any = None,
        producer_threads: int = 1,
        consumer_threads: int = 1,
        timeout_s: float = LIMIT_S,
        **plan: Any,
    ) -> None:
        rng = np.random.default_rng(seed)
        experts = placement.experts
        self.placement, self.top_k, self.hidden, self.inner = placement, top_k, hidden, inner
        self.expert, self.dtype = expert, dtype
        self.width = inner if expert == "single" else hidden
        factor = {"single": 0, "gelu": 1, "silu_gate": 2}[expert]
        self.up = None
        if factor:
            self.up = as_dtype(
                rng.standard_normal((experts, factor * inner, hidden), np.float32) * hidden**-0.5,
                dtype,
            )
        self.down = as_dtype(
            rng.standard_normal((experts, hidden, inner), np.float32) * inner**-0.5, dtype
        )
        plan = {"tile": (8, 8), **plan}
        self.layers = [
            executor.prepare_layer(
                placement=placement,
                dtype=dtype,
                expert=expert,
                hidden=hidden,
                inner=inner,
                top_k=top_k,
                max_tokens=max_tokens,
                timeout_s=timeout_s,
                **plan,
            )
            for executor in executors(
                placement.world,
                faults=faults,
                producer_threads=producer_threads,
                consumer_threads=consumer_threads,
            )
        ]

    def random_x(self, rng: np.random.Generator, ids: Sequence[np.ndarray]) -> list[Any]:
        return [
            as_dtype(rng.standard_normal((len(part), self.width), np.float32), self.dtype)
            for part in ids
        ]

    def start(
        self,
        x: Sequence[Any],
        ids: Sequence[np.ndarray],
        weights: Sequence[np.ndarray],
        mode: str = "overlapped",
    ) -> list[Any]:
        """Starts a call on all ranks; the outputs are ready after synchronize()."""
        outs = [nan_filled((len(part), self.hidden), self.dtype) for part in ids]
        for rank, layer in enumerate(self.layers):
            mine = self.mine(rank)
            layer.forward(
                x[rank],
                ids[rank],
                weights[rank],
                up=None if self.up is None else self.up[mine],
                down=self.down[mine],
                out=outs[rank],
                mode=mode,
            )
        return outs

    def mine(self, rank: int) -> slice:
        """The experts of `rank`."""
        experts = self.placement.experts_of(rank)
        return slice(experts.start, experts.stop)

    def synchronize(self) -> None:
        for layer in self.layers:
            layer.synchronize()

    def run(self, *args: Any, **keywords: Any) -> list[Any]:
        outs = self.start(*args, **keywords)
        self.synchronize()
        return outs

    def reference(
        self, x: Sequence[Any], ids: Sequence[np.ndarray], weights: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        return to.reference.layer(x, ids, weights, up=self.up, down=self.down, expert=self.expert)

    def check(
        self,
        x: Sequence[Any],
        ids: Sequence[np.ndarray],
        weights: Sequence[np.ndarray],
        mode: str = "overlapped",
    ) -> list[Any]:
        """Runs one call and compares it with the reference."""
        outs = self.run(x, ids, weights, mode=mode)
        assert_close(outs, self.reference(x, ids, weights), self.dtype)
        return outs

    def check_random(self, rng: np.random.Generator, ids: Sequence[np.ndarray]) -> list[Any]:
        """The same with random tokens and weights."""
        return self.check(self.random_x(rng, ids), ids, [random_weights(rng, part) for part in ids])

    def __enter__(self) -> Layer:
        return self

    def __exit__(self, *_: Any) -> None:
        for layer in self.layers:
            layer.close()


def assert_close(got: Sequence[Any], wanted: Sequence[np.ndarray], dtype: str) -> None:
    comparison = to.reference.compare(got, wanted, dtype)
    assert comparison.ok, f"{dtype}: {comparison}"


def dispatched_rows(
    plans: Sequence[to.Plan], ids: Sequence[np.ndarray], x: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """What an engine of its own would put into each rank's rows: x[t] for each copy, else NaN."""
    rows = [np.full((plan.rows, x[0].shape[1]), np.nan, np.float32) for plan in plans]
    for plan, part, tokens in zip(plans, ids, x, strict=True):
        index = plan.copy_index(part)
        for token, slot in np.argwhere(index.peer >= 0):
            rows[index.peer[token, slot]][index.dispatch_row[token, slot]] = tokens[token]
    return rows
