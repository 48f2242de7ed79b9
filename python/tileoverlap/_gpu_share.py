"""What a rank on a GPU has of it."""

from __future__ import annotations

import re
from typing import NamedTuple

from tileoverlap.moe_layer import MoeLayer

__all__ = ["GpuShare", "gpu_share"]


class GpuShare(NamedTuple):
    """A rank's SMs and the kernel of its returned GEMM; None: the layer does not say."""

    sms: int | None
    comm_sms: int | None
    """Of these, those that ship rows."""
    kernel: str | None


def gpu_share(layer: MoeLayer) -> GpuShare:
    """As the layer's repr has it."""
    found = re.search(r"\bsms=(\d+) of \d+, comm_sms=(\d+), kernel=([^,)]+)", repr(layer))
    if found is None:
        return GpuShare(None, None, None)
    return GpuShare(int(found[1]), int(found[2]), found[3])
