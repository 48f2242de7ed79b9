"""Pictures of plans."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import tileoverlap as to
from tileoverlap import plotting


def plan_for(world: int = 3, experts: int = 6, rows: int = 30) -> to.Plan:
    placement = to.Placement.even(world=world, experts=experts)
    rng = np.random.default_rng(0)
    counts = to.RouteCounts(placement, rng.integers(0, rows + 1, (world, experts)))
    return to.make_plan(placement, 0, counts, n=64, tile=(8, 16), layout="owner_aligned")


@pytest.mark.parametrize(
    ("picture_format", "begin"), [("png", b"\x89PNG\r\n"), ("svg", b"<?xml"), ("pdf", b"%PDF-")]
)
def test_pictures_are_drawn(picture_format: str, begin: bytes):
    pytest.importorskip("matplotlib")
    stream = io.BytesIO()
    plotting.draw_plan(plan_for(), stream, picture_format)
    assert stream.getvalue().startswith(begin)
    assert len(stream.getvalue()) > 5000


@pytest.mark.parametrize("world", [1, 2, 12])
def test_empty_plans_and_large_worlds_are_drawn(world: int):
    pytest.importorskip("matplotlib")
    for rows in (0, 5):
        stream = io.BytesIO()
        plotting.draw_plan(plan_for(world=world, experts=2 * world, rows=rows), stream, "png")
        assert stream.tell() > 5000


def test_other_formats_are_refused():
    with pytest.raises(to.InvalidArgument, match=r"\.png, \.svg, \.pdf, got 'plan\.gif'"):
        plotting.check_format("folder/plan.gif")


def test_missing_matplotlib_is_one_line(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(to.InvalidArgument) as error:
        plotting.check_format("plan.png")
    assert str(error.value) == "pictures need matplotlib: pip install tileoverlap[plot]"
