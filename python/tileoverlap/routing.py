"""Router modes: how the tokens of each rank choose experts, for runs without a model.

============== ===== ======= ==========================================================
mode           a     sigma   what it is
============== ===== ======= ==========================================================
balanced                     token t, choice i -> (t + i * ceil(E / k)) mod E: exact
moderate_skew  0.2   0.4     busiest rank about 1.20 times the mean
stress_skew    0.5   1.0     busiest rank about 1.50 times the mean
one_expert                   every copy goes to expert 0: the worst case
============== ===== ======= ==========================================================

The skewed modes draw top-k without replacement (Gumbel-top-k) from fixed expert weights p. Rank r
of W has the factor f_r = 1 + a (1 - 2 r / (W - 1)); its E experts have weights exp(sigma *
Phi^-1((j + 1/2) / E)), normalised, in an order shuffled with seed 1; p = f_r w_j / W. Real traces:
trace.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tileoverlap._args import as_choice, as_instance, as_int
from tileoverlap.counts import RouteCounts
from tileoverlap.errors import InvalidArgument
from tileoverlap.placement import Placement

__all__ = ["MODES", "Routed", "draw_counts", "equal_weights", "expert_weights", "route"]

MODES = ("balanced", "moderate_skew", "stress_skew", "one_expert")

_SKEW = {"moderate_skew": (0.2, 0.4), "stress_skew": (0.5, 1.0)}
_ORDER_SEED = 1


class Routed(NamedTuple):
    """What the tokens of one rank chose."""

    ids: npt.NDArray[np.int32]
    """[T, k]; -1 = no copy."""
    weights: npt.NDArray[np.float32]
    """[T, k]"""


def route(
    mode: str,
    *,
    placement: Placement,
    tokens: int | Sequence[int],
    top_k: int,
    seed: int = 0,
) -> list[Routed]:
    """Routes the tokens of all ranks.

    Args:
        mode: one of MODES.
        placement: experts by rank; the skewed modes make the first ranks the busiest.
        tokens: on every rank, or by rank.
        top_k: slots of a token. "balanced" repeats an expert inside a token where k does not divide
            the experts well (k = 3 of 4); "one_expert" always does. Both are legal routings.
        seed: of the skewed modes' draws, not of their expert weights.

    Returns:
        By rank: ids int32 [T_r, k] and weights float32 [T_r, k], all 1/k.

    Raises:
        InvalidArgument: an unknown mode, no experts, or more slots than experts in a skewed mode.
    """
    as_choice("mode", mode, MODES)
    as_instance("placement", placement, Placement)
    k = as_int("top_k", top_k, low=1)
    as_int("seed", seed, high=2**64 - 1)
    by_rank = _tokens_by_rank(tokens, placement.world)
    if placement.experts == 0 and any(by_rank):
        raise InvalidArgument("no tokens can be routed without experts")
    if mode in _SKEW and k > placement.experts:
        raise InvalidArgument(
            f"{mode} draws {k} different experts for a token, there are {placement.experts}"
        )
    weights = expert_weights(placement, *_SKEW[mode]) if mode in _SKEW else None
    routed = []
    for rank, count in enumerate(by_rank):
        if weights is not None and count > 0:
            ids = gumbel_top_k(weights, count, k, np.random.default_rng((seed, rank)))
        elif mode == "balanced" and count > 0:
            ids = _balanced(placement.experts, count, k)
        else:
            ids = np.zeros((count, k), np.int32)
        routed.append(Routed(ids, equal_weights(count, k)))
    return routed


def draw_counts(
    mode: str, *, placement: Placement, tokens: int, top_k: int, seed: int = 0
) -> RouteCounts:
    """How many copies each rank sends to each expert, drawn without drawing a token: for many ranks
    and experts. The balanced and one_expert matrices are those of `route`; the skewed modes draw
    the T * k copies of a rank from how often each expert is among k drawn without replacement.

    Args and errors: as `route`, with one number of tokens for all ranks.
    """
    as_choice("mode", mode, MODES)
    as_instance("placement", placement, Placement)
    k, count = as_int("top_k", top_k, low=1), as_int("tokens", tokens)
    as_int("seed", seed, high=2**64 - 1)
    experts, world = placement.experts, placement.world
    if experts == 0:
        if count > 0:
            raise InvalidArgument("no tokens can be routed without experts")
        return RouteCounts(placement, np.zeros((world, 0), np.int32))
    if mode in _SKEW:
        if k > experts:
            raise InvalidArgument(
                f"{mode} draws {k} different experts for a token, there are {experts}"
            )
        shares = _drawn_shares(expert_weights(placement, *_SKEW[mode]), k)
        draws = [
            np.random.default_rng((seed, rank)).multinomial(count * k, shares)
            for rank in range(world)
        ]
        return RouteCounts(placement, np.array(draws))
    row = np.zeros(experts, np.int64)
    if mode == "balanced":
        step = -(-experts // k)
        for slot in range(k):  # token t goes to (t + slot * step) mod experts
            first = (np.arange(experts) - slot * step) % experts
            row += count // experts + (first < count % experts)
    else:
        row[0] = count * k
    return RouteCounts(placement, np.tile(row, (world, 1)))


def _drawn_shares(weights: npt.NDArray[np.float64], top_k: int) -> npt.NDArray[np.float64]:
    """Of all copies, those of each expert, where each token draws k experts without replacement:
    1 - exp(-x p) each, with the x that makes them k in all (Rosen 1972: successive sampling)."""
    p = weights / weights.sum()
    if top_k == len(p):
        return np.full(len(p), 1.0 / top_k)
    low, high = 0.0, 1.0
    while (1.0 - np.exp(-high * p)).sum() < top_k:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        if (1.0 - np.exp(-middle * p)).sum() < top_k:
            low = middle
        else:
            high = middle
    drawn = 1.0 - np.exp(-high * p)
    shares: npt.NDArray[np.float64] = drawn / drawn.sum()
    return shares


def equal_weights(tokens: int, top_k: int) -> npt.NDArray[np.float32]:
    """float32 [tokens, top_k], all 1 / top_k."""
    return np.full((tokens, top_k), 1.0 / top_k, np.float32)


def expert_weights(placement: Placement, a: float, sigma: float) -> npt.NDArray[np.float64]:
    """The weights p [experts] of the skewed modes, summing to 1 where every rank hosts an
    expert."""
    world = placement.world
    shuffle = np.random.default_rng(_ORDER_SEED)
    parts = []
    for rank in range(world):
        count = placement.experts_on(rank)
        factor = 1.0 + a * (1.0 - 2.0 * rank / (world - 1)) if world > 1 else 1.0
        quantiles = [NormalDist().inv_cdf((j + 0.5) / count) for j in range(count)]
        weights = np.exp(sigma * np.array(quantiles, np.float64))
        weights = shuffle.permutation(weights / weights.sum()) if count else weights
        parts.append(factor * weights / world)
    return np.concatenate(parts)


def _tokens_by_rank(tokens: int | Sequence[int], world: int) -> list[int]:
    if isinstance(tokens, Sequence):
        if len(tokens) != world:
            raise InvalidArgument(
                f"tokens must be one number or one a rank, {world}, got {len(tokens)}"
            )
        return [as_int(f"tokens[{rank}]", count) for rank, count in enumerate(tokens)]
    return [as_int("tokens", tokens)] * world


def _balanced(experts: int, tokens: int, top_k: int) -> npt.NDArray[np.int32]:
    step = -(-experts // top_k)
    ids = (np.arange(tokens)[:, None] + np.arange(top_k) * step) % experts
    return ids.astype(np.int32)


def gumbel_top_k(
    weights: npt.NDArray[np.float64], tokens: int, top_k: int, rng: np.random.Generator
) -> npt.NDArray[np.int32]:
    """Draws `top_k` different experts a token, in the order in which they would be drawn one after
    the other.

    Args:
        weights: [experts], > 0, need not sum to 1.

    Returns:
        int32 [tokens, top_k].
    """
    scores = np.log(weights) + rng.gumbel(size=(tokens, len(weights)))
    best = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
    return np.take_along_axis(best, order, axis=1).astype(np.int32)
