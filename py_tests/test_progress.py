"""The progress bar: only where somebody watches, only after two seconds."""

from __future__ import annotations

import io

import pytest

from tileoverlap import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_nothing_is_drawn_in_the_first_two_seconds(clock):
    stream = Terminal()
    with progress.Progress(4, "layer", stream) as bar:
        clock[0] += 1.9
        bar.step()
    assert stream.getvalue() == ""


def test_a_bar_is_drawn_and_wiped(clock):
    stream = Terminal()
    with progress.Progress(4, "reference", stream) as bar:
        clock[0] += 2.1
        bar.step("layer")
        clock[0] += 0.01
        bar.step()  # too soon to draw again
        clock[0] += 1
        bar.step()
    text = stream.getvalue()
    assert "layer [#######" in text
    assert "1/4" in text
    assert "2/4" not in text
    assert "3/4" in text
    assert text.endswith("\r\x1b[K")


def test_nothing_is_drawn_where_nobody_watches(clock):
    stream = io.StringIO()
    with progress.Progress(1, "layer", stream) as bar:
        clock[0] += 10
        bar.step()
    assert stream.getvalue() == ""
