"""One Python thread a rank, as in a program whose ranks do not know of one another."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from support import LIMIT_S, random_ids, random_weights

import tileoverlap as to

WORLD, EXPERTS, TOP_K, K, N, TILE = 4, 10, 3, 8, 16, (8, 8)
PLACEMENT = to.Placement.even(world=WORLD, experts=EXPERTS)
DOWN = np.random.default_rng(0).standard_normal((EXPERTS, N, K), np.float32)


def on_all_ranks(rank_main: Callable[[to.Transport], None]) -> None:
    """Runs rank_main(transport) on a thread for each rank; raises the first of their errors."""
    errors: list[BaseException] = []

    def guarded(transport: to.Transport) -> None:
        try:
            rank_main(transport)
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=guarded, args=(transport,), daemon=True)
        for transport in to.World(WORLD).transports
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def call_of(rank: int, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x, ids, weights), which every rank can make for any other."""
    rng = np.random.default_rng((number, rank))
    ids = random_ids(rng, int(rng.integers(0, 20)), TOP_K, EXPERTS, skipped=0.1)
    return rng.standard_normal((len(ids), K), np.float32), ids, random_weights(rng, ids)


def check(rank: int, number: int, out: np.ndarray) -> None:
    x, ids, weights = call_of(rank, number)
    wanted = to.reference.return_path([x], [ids], [weights], down=DOWN)
    assert to.reference.compare([out], wanted, "float32").ok


def test_layers_of_threads():
    def rank_main(transport: to.Transport) -> None:
        rank = transport.rank
        mine = PLACEMENT.experts_of(rank)
        with to.CpuExecutor(transport).prepare_layer(
            placement=PLACEMENT,
            dtype="float32",
            expert="single",
            hidden=N,
            inner=K,
            top_k=TOP_K,
            max_tokens=20,
            tile=TILE,
            timeout_s=LIMIT_S,
        ) as layer:
            for number in range(20):
                x, ids, weights = call_of(rank, number)
                out = np.full((len(ids), N), np.nan, np.float32)
                layer.forward(x, ids, weights, down=DOWN[mine.start : mine.stop], out=out)
                layer.synchronize()
                check(rank, number, out)

    on_all_ranks(rank_main)


def test_an_engine_of_its_own_gathers_counts_plans_and_runs():
    rows_of: dict[tuple[int, int], np.ndarray] = {}
    filled = threading.Barrier(WORLD, timeout=LIMIT_S)

    def rank_main(transport: to.Transport) -> None:
        rank = transport.rank
        mine = PLACEMENT.experts_of(rank)
        session = to.CpuExecutor(transport).prepare(
            placement=PLACEMENT,
            dtype="float32",
            k=K,
            n=N,
            top_k=TOP_K,
            max_tokens=20,
            tile=TILE,
            timeout_s=LIMIT_S,
        )
        for number in range(10):
            x, ids, weights = call_of(rank, number)
            counts = to.gather_counts(transport, PLACEMENT, ids, timeout_s=LIMIT_S)
            plan = to.make_plan(PLACEMENT, rank, counts, n=N, tile=TILE)
            rows_of[rank, number] = np.full((plan.rows, K), np.nan, np.float32)
            filled.wait()
            index = plan.copy_index(ids)
            for token, slot in np.argwhere(index.peer >= 0):
                host, row = int(index.peer[token, slot]), index.dispatch_row[token, slot]
                rows_of[host, number][row] = x[token]
            filled.wait()
            out = np.full((len(ids), N), np.nan, np.float32)
            session.run(
                plan,
                rows_of[rank, number],
                DOWN[mine.start : mine.stop],
                ids,
                weights,
                out=out,
            )
            session.synchronize()
            check(rank, number, out)
        filled.wait()  # nobody closes while another still needs it

    on_all_ranks(rank_main)
