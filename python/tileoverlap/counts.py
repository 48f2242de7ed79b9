"""How many copies each rank sends to each expert (stage routing): all that a plan needs to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tileoverlap import _core
from tileoverlap._args import INT32_MAX, as_instance, as_int
from tileoverlap._dlpack import TensorLike, as_tensor
from tileoverlap.errors import DTypeError, InvalidArgument
from tileoverlap.placement import Placement

__all__ = ["RouteCounts", "count_routes"]


class RouteCounts:
    """The counts matrix: ``counts[s, e]`` copies, that is (token, slot) pairs, go from owner s to
    expert e.

    Immutable, the same on all ranks.
    """

    def __init__(self, placement: Placement, counts: npt.ArrayLike) -> None:
        """Checks and copies a matrix.

        Args:
            placement: gives world and experts.
            counts: integers [world, experts], 0 .. 2^31 - 1.

        Raises:
            DTypeError: counts are no integers.
            InvalidArgument: wrong shape, or an entry out of range.
        """
        as_instance("placement", placement, Placement)
        self._core = _core.RouteCounts(placement._core, _int32_matrix(placement, counts))

    @classmethod
    def _wrap(cls, core: _core.RouteCounts) -> RouteCounts:
        made = cls.__new__(cls)
        made._core = core
        return made

    @property
    def world(self) -> int:
        return self._core.world

    @property
    def experts(self) -> int:
        return self._core.experts

    @property
    def array(self) -> npt.NDArray[np.int32]:
        """The matrix, int32 [world, experts], read-only, without a copy."""
        return self._core.values().reshape(self.world, self.experts)

    def copies_of(self, owner: int) -> int:
        """Copies that `owner` sends in all."""
        return self._core.copies_of(as_int("owner", owner, high=self.world - 1))

    def __repr__(self) -> str:
        return repr(self._core)


def count_routes(placement: Placement, topk_ids: Sequence[TensorLike]) -> RouteCounts:
    """Counts the ids of all ranks, for ranks that live in one process. Others: gather_counts.

    Args:
        placement: experts by rank.
        topk_ids: by rank, [T_r, k] int32 or int64 on the CPU; -1 = no copy. T_r may differ and be
            0. The same expert twice in a token is two copies, and both weights count.

    Raises:
        DTypeError: another element type.
        InvalidArgument: any other id outside 0 .. experts-1, naming rank, token, slot and value; a
            wrong number of tensors.
    """
    as_instance("placement", placement, Placement)
    if isinstance(topk_ids, np.ndarray) or hasattr(topk_ids, "__dlpack__"):
        raise DTypeError(
            f"topk_ids must be a list of one tensor a rank, got one {type(topk_ids).__name__}"
        )
    tensors = [as_tensor(ids, f"topk_ids[{rank}]") for rank, ids in enumerate(topk_ids)]
    return RouteCounts._wrap(_core.count_routes(placement._core, tensors))


def _int32_matrix(placement: Placement, counts: npt.ArrayLike) -> npt.NDArray[np.int32]:
    array: npt.NDArray[Any] = np.asarray(counts)
    shape = (placement.world, placement.experts)
    if array.size == 0 and array.dtype == np.float64:
        array = array.astype(np.int32)  # what numpy makes of an empty list
    if array.dtype.kind not in "iu":
        raise DTypeError(f"counts must be integers, got {array.dtype}")
    if array.shape != shape:
        raise InvalidArgument(
            f"counts must be [world, experts] = {list(shape)}, got {list(array.shape)}"
        )
    if array.size and (array.min() < 0 or array.max() > INT32_MAX):
        worst = array.min() if array.min() < 0 else array.max()
        owner, expert = np.argwhere(array == worst)[0]
        raise InvalidArgument(
            f"counts must lie in 0..{INT32_MAX}, got {worst} for owner {owner}, expert {expert}"
        )
    return np.ascontiguousarray(array, np.int32)
