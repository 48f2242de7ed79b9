#!/usr/bin/env python3
"""Writes python/tileoverlap/data/quick_trace.npz: a simulated router, for runs without any file.

Four streams of tokens, each with a taste of its own for some of the 64 experts, plus what the
streams have in common and noise by token; a softmax over all experts, of which the best six and
their gate values are kept. Nothing in it comes from a model or a text. Same seed, same choices.
"""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path

import numpy as np

STREAMS = 4
TOKENS = 512
EXPERTS = 64
TOP_K = 6
SEED = 20240607
OUT = Path(__file__).resolve().parent.parent / "python" / "tileoverlap" / "data" / "quick_trace.npz"


def stream(common: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """ids uint8 [TOKENS, TOP_K] by falling gate value, weights float16 [TOKENS, TOP_K]."""
    taste = rng.normal(scale=0.7, size=EXPERTS)
    topics = rng.normal(scale=0.8, size=(8, EXPERTS))
    topic_of = np.repeat(
        rng.integers(0, len(topics), TOKENS // 16), 16
    )  # runs of tokens on one topic
    logits = common + taste + topics[topic_of] + rng.normal(scale=1.0, size=(TOKENS, EXPERTS))
    gate = np.exp(logits - logits.max(axis=1, keepdims=True))
    gate /= gate.sum(axis=1, keepdims=True)
    ids = np.argsort(-gate, axis=1, kind="stable")[:, :TOP_K]
    return ids.astype(np.uint8), np.take_along_axis(gate, ids, axis=1).astype(np.float16)


def main() -> None:
    rng = np.random.default_rng(SEED)
    common = rng.normal(scale=0.35, size=EXPERTS)
    arrays = {}
    for number in range(STREAMS):
        ids, weights = stream(common, rng)
        arrays[f"stream{number}/layer01/ids"] = ids
        arrays[f"stream{number}/layer01/weights"] = weights
    OUT.parent.mkdir(parents=True, exist_ok=True)
    # Not np.savez: it stamps the members with the present time.
    with zipfile.ZipFile(OUT, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in arrays.items():
            content = BytesIO()
            np.lib.format.write_array(content, array, allow_pickle=False)
            archive.writestr(
                zipfile.ZipInfo(f"{key}.npy", (1980, 1, 1, 0, 0, 0)),
                content.getvalue(),
                zipfile.ZIP_DEFLATED,
            )
    counts = np.bincount(
        np.concatenate([a.ravel() for k, a in arrays.items() if k.endswith("ids")]),
        minlength=EXPERTS,
    )
    print(
        f"{OUT.name}: {OUT.stat().st_size} bytes, load per expert {counts.min()}..{counts.max()}, "
        f"coefficient of variation {counts.std() / counts.mean():.2f}"
    )


if __name__ == "__main__":
    main()
