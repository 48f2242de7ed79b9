"""Recorded routing."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

import tileoverlap as to

IDS = np.arange(12, dtype=np.uint8).reshape(4, 3)


@pytest.fixture
def write(tmp_path: Path):
    """Writes an npz file and returns its path."""

    def make(**arrays: np.ndarray) -> Path:
        path = tmp_path / "trace.npz"
        np.savez(path, **{key.replace("__", "/"): value for key, value in arrays.items()})
        return path

    return make


def test_ranks_take_names_in_alphabetical_order(write):
    path = write(b__layer01__ids=IDS, a__layer01__ids=IDS + 1, c__layer01__ids=IDS + 2)
    routed = to.load_trace(path, ranks=2, experts=16)
    assert routed[0].ids.tolist() == (IDS + 1).tolist()
    assert routed[1].ids.tolist() == IDS.tolist()
    assert routed[0].ids.dtype == np.int32


def test_missing_weights_are_one_over_k_of_the_columns_taken(write):
    (part,) = to.load_trace(write(a__layer01__ids=IDS), ranks=1, experts=16, top_k=2)
    assert (part.weights == 0.5).all()
    assert part.weights.shape == (4, 2)


def test_first_tokens_and_first_columns_are_taken_of_ids_and_weights(write):
    weights = (IDS / 100).astype(np.float16)
    path = write(a__layer01__ids=IDS, a__layer01__weights=weights)
    (part,) = to.load_trace(path, ranks=1, experts=16, tokens=2, top_k=2)
    assert part.ids.tolist() == [[0, 1], [3, 4]]
    assert part.weights.tolist() == weights[:2, :2].astype(np.float32).tolist()


def test_the_layer_is_chosen_by_number(write):
    path = write(a__layer01__ids=IDS, a__layer13__ids=IDS + 1)
    (part,) = to.load_trace(path, ranks=1, experts=16, layer=13)
    assert part.ids[0, 0] == 1


def test_minus_one_is_no_copy(write):
    (part,) = to.load_trace(write(a__layer01__ids=IDS.astype(np.int8) - 1), ranks=1, experts=16)
    assert part.ids[0].tolist() == [-1, 0, 1]


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        ({"a__layer01__ids": IDS}, {"ranks": 2}, ["1 names", "2 ranks"]),
        ({"a__layer01__ids": IDS}, {"layer": 2}, ["no layer 2", "1"]),
        ({"a__layer01__ids": IDS, "a__layer03__ids": IDS}, {}, ["1, 3", "which"]),
        ({"a__layer01__ids": IDS, "b__layer03__ids": IDS}, {"ranks": 2, "layer": 1}, ["'b'", "1"]),
        ({"something": IDS}, {}, ["<name>/layerNN/ids"]),
        ({"a__layer01__ids": IDS}, {"tokens": 5}, ["4 tokens", "5"]),
        ({"a__layer01__ids": IDS}, {"top_k": 4}, ["3 choices", "4"]),
        ({"a__layer01__ids": IDS}, {"experts": 11}, ["0..10", "11", "token 3", "slot 2"]),
        ({"a__layer01__ids": IDS.astype(np.int64) - 2}, {}, ["-2", "token 0", "slot 0"]),
        ({"a__layer01__ids": IDS.astype(float)}, {}, ["integers", "float64"]),
        ({"a__layer01__ids": IDS[0]}, {}, ["[T, k]", "[3]"]),
        ({"a__layer01__ids": IDS[:, :0]}, {}, ["0 choices"]),
        ({"a__layer01__ids": IDS, "a__layer01__weights": IDS}, {}, ["floats", "uint8"]),
        ({"a__layer01__ids": IDS, "a__layer01__weights": IDS[:2] * 0.5}, {}, ["[2, 3]", "[4, 3]"]),
        ({"a__layer01__ids": IDS, "a__layer01__weights": IDS * np.nan}, {}, ["finite", "nan"]),
        ({"a__layer01__ids": np.array([[{}]])}, {}, ["Object arrays"]),
    ],
)
def test_what_cannot_be_used_is_one_clear_line(write, arrays, options, words):
    path = write(**arrays)
    with pytest.raises(to.InvalidArgument) as error:
        to.load_trace(path, **{"ranks": 1, "experts": 16, **options})
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "trace.npz" in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_are_no_npz_are_refused(tmp_path: Path, write):
    missing = tmp_path / "missing.npz"
    with pytest.raises(to.InvalidArgument, match=r"cannot read .*missing\.npz: No such file"):
        to.load_trace(missing, ranks=1, experts=4)
    with pytest.raises(to.InvalidArgument, match="Is a directory"):
        to.load_trace(tmp_path, ranks=1, experts=4)
    single = tmp_path / "single.npy"
    np.save(single, IDS)
    with pytest.raises(to.InvalidArgument, match="single array"):
        to.load_trace(single, ranks=1, experts=4)
    for content in (b"", b"no archive", b"PK\x03\x04 cut off"):
        broken = tmp_path / "broken.npz"
        broken.write_bytes(content)
        with pytest.raises(to.InvalidArgument, match=r"broken\.npz"):
            to.load_trace(broken, ranks=1, experts=4)
    whole = write(a__layer01__ids=np.zeros((999, 3), np.uint8)).read_bytes()
    for cut in (60, len(whole) // 2, len(whole) - 5):
        broken.write_bytes(whole[:cut])
        with pytest.raises(to.InvalidArgument, match=r"broken\.npz"):
            to.load_trace(broken, ranks=1, experts=4)
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("a/layer01/ids.npy", b"not an array")
    with pytest.raises(to.InvalidArgument, match=r"broken\.npz"):
        to.load_trace(broken, ranks=1, experts=4)


def test_the_built_in_trace_is_small_and_skewed():
    path = to.trace.quick_trace_path()
    assert path.stat().st_size < 100_000
    routed = to.load_trace(path, ranks=4, experts=64)
    for part in routed:
        assert part.ids.shape == part.weights.shape == (512, 6)
        assert (np.diff(np.sort(part.ids, axis=1), axis=1) > 0).all()
        assert (np.diff(part.weights, axis=1) <= 0).all()
        assert (part.weights.sum(axis=1) < 1).all()
    counts = np.bincount(np.concatenate([part.ids.ravel() for part in routed]), minlength=64)
    assert 0.3 < counts.std() / counts.mean() < 1.5


def test_the_built_in_trace_is_what_its_script_makes(repository: Path, tmp_path: Path):
    script = (repository / "tools" / "make_quick_trace.py").read_text()
    made = tmp_path / "tools" / "make_quick_trace.py"
    made.parent.mkdir()
    made.write_text(script)
    subprocess.run([sys.executable, str(made)], check=True, capture_output=True, timeout=60)
    with np.load(next(tmp_path.rglob("*.npz"))) as new, np.load(to.trace.quick_trace_path()) as old:
        assert new.files == old.files
        for key in old.files:
            if key.endswith("ids"):
                assert np.array_equal(new[key], old[key])
            else:
                np.testing.assert_allclose(new[key], old[key], rtol=2e-3)


def test_real_traces_are_read(real_trace: Path):
    routed = to.load_trace(real_trace, ranks=4, experts=64, layer=13, tokens=100)
    assert [part.ids.shape for part in routed] == [(100, 6)] * 4
    with np.load(real_trace) as archive:
        assert routed[1].ids.tolist() == archive["law/layer13/ids"][:100].tolist()
        assert np.array_equal(routed[3].weights, archive["translation/layer13/weights"][:100])
    with pytest.raises(to.InvalidArgument, match="4 names"):
        to.load_trace(real_trace, ranks=5, experts=64, layer=13)
