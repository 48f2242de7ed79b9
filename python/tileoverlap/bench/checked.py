"""Whether a layer's calls are right: the same bits in every way, and close to the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tileoverlap.bench.checks import WrongResult
from tileoverlap.bench.routed import Call
from tileoverlap.bench.torch_layer import compare, reference_layer
from tileoverlap.reference import TOLERANCES

__all__ = ["Checked", "check_layer"]

Launch = Callable[[], Any]


class Checked(NamedTuple):
    """What came out, the worst of all inputs."""

    differing: tuple[str, ...]
    """Those whose bits were not those of the first."""
    per_token: float
    """max |d| / max |y| of the worst token, against float64."""
    relative_l2: float
    """|d| / |y|"""
    within: bool
    """Both errors are within the dtype's tolerance."""

    @property
    def ok(self) -> bool:
        return self.within and not self.differing

    def require(self, dtype: str) -> None:
        """Raises WrongResult unless all of it is right."""
        if self.differing:
            raise WrongResult(f"bits differ between calls that must be equal: {self.differing}")
        if not self.within:
            limit = TOLERANCES[dtype]
            raise WrongResult(
                f"the layer's worst token is off by {self.per_token:.2e}, allowed are "
                f"{limit.per_token:.1e}; relative L2 is {self.relative_l2:.2e}, allowed are "
                f"{limit.relative_l2:.0e}"
            )


def check_layer(
    torch: Any,
    call: Call,
    out: Any,
    launches: Mapping[str, Launch],
    settle: Callable[[], None],
    *,
    dtype: str,
    inputs: int = 2,
) -> Checked:
    """Makes every launch on each of several inputs, drawn anew in place, so that what an earlier
    call has left behind is wrong. Each must write all of `out`, which is NaN before."""
    comparisons = []
    differing: dict[str, None] = {}
    for _ in range(inputs):
        call.draw()
        wanted = reference_layer(torch, call)
        first: Any = None
        for name, launch in launches.items():
            out.fill_(float("nan"))
            launch()
            settle()
            comparisons.append(compare(torch, out, wanted, dtype))
            bits = out.view(torch.int16)
            first = bits.clone() if first is None else first
            if not torch.equal(bits, first):
                differing[name] = None
    return Checked(
        tuple(differing),
        max(comparison.per_token for comparison in comparisons),
        max(comparison.relative_l2 for comparison in comparisons),
        all(comparison.ok for comparison in comparisons),
    )
