"""Recorded routing: npz files with the choices that a real router made.

Keys: ``<name>/layerNN/ids`` [T, k] integers and, where known, ``<name>/layerNN/weights`` [T, k]
floats. Rank r takes the r-th name in alphabetical order.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tileoverlap._args import as_int
from tileoverlap.errors import DTypeError, InvalidArgument
from tileoverlap.routing import Routed, equal_weights

__all__ = ["load_trace", "quick_trace_path"]

# What numpy and zipfile say of pickled, cut off or damaged files.
_NOT_AN_NPZ = (zipfile.BadZipFile, zlib.error, EOFError, TypeError, ValueError, RuntimeError)

_IDS_KEY = re.compile(r"(?P<name>.+)/layer(?P<layer>\d+)/ids")


def quick_trace_path() -> Path:
    """The small simulated trace that comes with the package: 4 names, 1 layer, 512 tokens, top-6 of
    64 experts."""
    return Path(str(resources.files("tileoverlap") / "data" / "quick_trace.npz"))


def load_trace(
    path: str | Path,
    *,
    ranks: int,
    experts: int,
    layer: int | None = None,
    tokens: int | None = None,
    top_k: int | None = None,
) -> list[Routed]:
    """Reads the routing of `ranks` ranks.

    Args:
        path: the npz file.
        ranks: rank r takes the r-th name in alphabetical order.
        experts: ids must lie in 0 .. experts-1 or be -1.
        layer: which layer; None where the file holds only one.
        tokens: the first so many of each name; None: all.
        top_k: the first so many columns; None: all.

    Returns:
        By rank: ids int32 [T, k] and weights float32 [T, k]; 1/k where the file has none.

    Raises:
        InvalidArgument: a file that cannot be read or is no npz; names, layers, tokens or columns
            that are not there; ids out of range or weights that are not finite, naming key, token
            and slot.
        DTypeError: ids that are no integers, weights that are no floats.
    """
    as_int("ranks", ranks, low=1)
    try:
        archive: Any = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise InvalidArgument(f"{path} is a single array, needed is an npz file")
        with archive:
            return _Reader(str(path), archive, experts, tokens, top_k).read(ranks, layer)
    except InvalidArgument:
        raise
    except OSError as error:
        raise InvalidArgument(f"cannot read {path}: {error.strerror or error}") from error
    except _NOT_AN_NPZ as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidArgument(f"{path} is no usable npz file: {reason}") from error


class _Reader:
    def __init__(
        self,
        path: str,
        archive: Mapping[str, Any],
        experts: int,
        tokens: int | None,
        top_k: int | None,
    ) -> None:
        self.path = path
        self.archive = archive
        self.experts = as_int("experts", experts, low=1)
        self.tokens = None if tokens is None else as_int("tokens", tokens)
        self.top_k = None if top_k is None else as_int("top_k", top_k, low=1)

    def read(self, ranks: int, layer: int | None) -> list[Routed]:
        layers = self._layers()
        names = sorted({name for by_name in layers.values() for name in by_name})
        if ranks > len(names):
            raise InvalidArgument(
                f"{self.path} holds {len(names)} names ({', '.join(names)}), one a rank, too few "
                f"for {ranks} ranks"
            )
        chosen = self._choose_layer(layers, layer)
        routed = []
        for name in names[:ranks]:
            if name not in layers[chosen]:
                raise InvalidArgument(f"{self.path} has no layer {chosen} for '{name}'")
            routed.append(self._routed(layers[chosen][name]))
        return routed

    def _layers(self) -> dict[int, dict[str, str]]:
        """Keys of ids by layer number and name."""
        layers: dict[int, dict[str, str]] = {}
        for key in self.archive:
            match = _IDS_KEY.fullmatch(key)
            if match:
                layers.setdefault(int(match["layer"]), {})[match["name"]] = key
        if not layers:
            raise InvalidArgument(f"{self.path} has no key of the form <name>/layerNN/ids")
        return layers

    def _choose_layer(self, layers: dict[int, dict[str, str]], layer: int | None) -> int:
        present = ", ".join(str(number) for number in sorted(layers))
        if layer is None:
            if len(layers) > 1:
                raise InvalidArgument(f"{self.path} holds the layers {present}: say which one")
            return next(iter(layers))
        if layer not in layers:
            raise InvalidArgument(f"{self.path} has no layer {layer}, it holds {present}")
        return layer

    def _routed(self, ids_key: str) -> Routed:
        ids = self._matrix(ids_key, "iu", "integers")
        weights_key = ids_key.removesuffix("ids") + "weights"
        if weights_key not in self.archive:
            cut = self._cut(ids_key, ids)
            return Routed(self._checked_ids(ids_key, cut), equal_weights(*cut.shape))
        weights = self._matrix(weights_key, "f", "floats")
        if weights.shape != ids.shape:
            raise InvalidArgument(
                f"{self.path}: {weights_key} is {list(weights.shape)}, {ids_key} is "
                f"{list(ids.shape)}"
            )
        return Routed(
            self._checked_ids(ids_key, self._cut(ids_key, ids)),
            self._checked_weights(weights_key, self._cut(weights_key, weights)),
        )

    def _matrix(self, key: str, kinds: str, wanted: str) -> npt.NDArray[Any]:
        array: Any = self.archive[key]
        if not isinstance(array, np.ndarray):  # numpy hands out as bytes what is no npy file
            raise InvalidArgument(f"{self.path}: {key} is no array")
        if array.dtype.kind not in kinds:
            raise DTypeError(f"{self.path}: {key} must hold {wanted}, got {array.dtype}")
        if array.ndim != 2:
            raise InvalidArgument(f"{self.path}: {key} must be [T, k], got {list(array.shape)}")
        return array

    def _cut(self, key: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        tokens = array.shape[0] if self.tokens is None else self.tokens
        top_k = array.shape[1] if self.top_k is None else self.top_k
        if tokens > array.shape[0]:
            raise InvalidArgument(
                f"{self.path}: {key} holds {array.shape[0]} tokens, asked for {tokens}"
            )
        if top_k > array.shape[1] or top_k == 0:
            raise InvalidArgument(
                f"{self.path}: {key} holds {array.shape[1]} choices a token, asked for {top_k}"
            )
        return array[:tokens, :top_k]

    def _checked_ids(self, key: str, ids: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        outside = (ids >= self.experts) | (ids.astype(np.int64) < -1)
        if outside.any():
            token, slot = np.argwhere(outside)[0]
            raise InvalidArgument(
                f"{self.path}: {key} must lie in 0..{self.experts - 1} or be -1, got "
                f"{ids[token, slot]} "
                f"at token {token}, slot {slot}"
            )
        return np.ascontiguousarray(ids, np.int32)

    def _checked_weights(self, key: str, weights: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):  # becomes inf, which is reported
            narrow = np.ascontiguousarray(weights, np.float32)
        if not np.isfinite(narrow).all():
            token, slot = np.argwhere(~np.isfinite(narrow))[0]
            raise InvalidArgument(
                f"{self.path}: {key} must be finite, got {weights[token, slot]} at token {token}, "
                f"slot {slot}"
            )
        return narrow
