"""What an import brings and needs; the exceptions; the names of the extension module."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import tileoverlap as to
from tileoverlap import _core


def run_python(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def test_import_brings_only_numpy():
    program = (
        "import sys, tileoverlap, tileoverlap.cli; "
        "print([m for m in ('torch', 'matplotlib', 'jax', 'cupy', 'scipy') if m in sys.modules])"
    )
    assert run_python(program) == "[]"


def test_import_needs_no_torch():
    blocked = "import sys; sys.modules['torch'] = None; sys.modules['matplotlib'] = None; "
    assert (
        run_python(blocked + "import tileoverlap; print(tileoverlap.__version__)") == to.__version__
    )


def test_extension_can_be_imported_by_itself():
    folder = Path(_core.__file__).parent
    program = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import _core; print(_core.__version__)"
    )
    assert run_python(program) == to.__version__


def test_version_is_that_of_the_file(repository: Path):
    assert to.__version__ == (repository / "VERSION").read_text().strip()


def test_everything_in_all_exists():
    assert [name for name in to.__all__ if not hasattr(to, name)] == []


def test_stub_names_what_the_extension_has(repository: Path):
    stub = ast.parse((repository / "python" / "tileoverlap" / "_core.pyi").read_text())
    for node in stub.body:
        if isinstance(node, ast.FunctionDef):
            assert callable(getattr(_core, node.name))
        elif isinstance(node, ast.AnnAssign):
            assert hasattr(_core, node.target.id)
        elif isinstance(node, ast.ClassDef):
            cls = getattr(_core, node.name)
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    assert hasattr(cls, member.name), f"{node.name}.{member.name}"
    stubbed = {getattr(node, "name", None) for node in stub.body}
    public = {
        name for name in vars(_core) if not name.startswith("_") and callable(getattr(_core, name))
    }
    assert public <= stubbed


@pytest.mark.parametrize(
    ("kind", "bases"),
    [
        (to.InvalidArgument, (to.Error, ValueError)),
        (to.DTypeError, (to.InvalidArgument, TypeError)),
        (to.CapacityError, (to.InvalidArgument,)),
        (to.CallRefused, (to.Error, RuntimeError)),
        (to.WaitTimeout, (to.Error, TimeoutError)),
        (to.InternalError, (to.Error, RuntimeError)),
    ],
)
def test_exceptions_are_also_those_of_python(kind: type, bases: tuple[type, ...]):
    assert all(issubclass(kind, base) for base in bases)


def test_wait_timeout_survives_pickling():
    error = to.WaitTimeout("rank 1 waited", stage="reduce", what="arrival", rank=1, peer=2, epoch=3)
    copy = pickle.loads(pickle.dumps(error))
    assert str(copy) == "rank 1 waited"
    assert (copy.stage, copy.rank, copy.peer, copy.expert, copy.epoch) == ("reduce", 1, 2, -1, 3)
