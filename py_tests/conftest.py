"""Shared set-up of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # for `import support`; the import mode adds no folder by itself

try:
    from hypothesis import settings

    # The same examples in each run: a test that fails now and then is of no use to anybody.
    settings.register_profile("fixed", deadline=None, derandomize=True, print_blob=True)
    settings.load_profile("fixed")
except ImportError:
    pass


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "case(name): a case of the public bug reports, such as D4.1")


@pytest.fixture(scope="session")
def repository() -> Path:
    """The top folder of the source tree."""
    return HERE.parent


@pytest.fixture(scope="session")
def real_trace(repository: Path) -> Path:
    """Recorded choices of a real model, where this machine has them."""
    folder = Path(os.environ.get("TILEOVERLAP_TRACE_DIR", repository.parent / "shared" / "data"))
    path = folder / "esft_routing.npz"
    if not path.exists():
        pytest.skip(f"no {path.name} in ../shared/data (or set TILEOVERLAP_TRACE_DIR)")
    return path
