"""The programs of the README run as they stand there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCKS = (
    re.findall(r"^```python\n(.*?)^```", README.read_text(), re.S | re.M) if README.exists() else []
)


def test_the_readme_shows_a_python_program():
    if not README.exists():
        pytest.skip("no README.md here")
    assert BLOCKS


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_python_program_runs(number: int, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BLOCKS[number]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_python_program_is_the_example_file(number: int, repository: Path):
    examples = [path.read_text() for path in (repository / "tools" / "examples").glob("*.py")]
    if not examples:
        pytest.skip("no examples here")
    assert any(BLOCKS[number].strip() == example.strip() for example in examples)


def test_the_cpp_program_is_the_example_file(repository: Path):
    """The example itself is built and run with the C++ tests."""
    blocks = re.findall(r"^```cpp\n(.*?)^```", README.read_text(), re.S | re.M)
    assert blocks == [(repository / "tools" / "examples" / "moe_layer.cpp").read_text()]
