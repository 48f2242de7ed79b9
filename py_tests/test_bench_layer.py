"""How a benchmark judges a layer, on the CPU: it needs torch, but no GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tileoverlap as to
from tileoverlap.bench.checked import check_layer
from tileoverlap.bench.checks import WrongResult
from tileoverlap.bench.routed import Call, make_call
from tileoverlap.bench.shapes import Shape
from tileoverlap.bench.torch_layer import compare, loop_layer, reference_layer

torch: Any = pytest.importorskip("torch")

SHAPE = Shape("small", world=2, experts=6, top_k=2, tokens=40, n=48, k=32)
EXPERTS = ["single", "gelu", "silu_gate"]


def made(expert: str = "silu_gate", mode: str = "stress_skew", dtype: str = "bfloat16") -> Call:
    return make_call(torch, SHAPE, mode, expert=expert, dtype=dtype, device="cpu")


@pytest.mark.parametrize("expert", EXPERTS)
def test_the_reference_is_that_of_numpy(expert: str):
    call = made(expert)
    call.ids[3, 1] = -1
    call.ids[5] = 2  # twice the same expert
    ranks = range(SHAPE.world)
    parts = [call.of_rank(rank) for rank in ranks]
    wanted = to.reference.layer(
        [part["x"].double().numpy() for part in parts],
        [part["topk_ids"].numpy() for part in parts],
        [part["topk_weights"].numpy() for part in parts],
        up=None if call.up is None else call.up.double().numpy(),
        down=call.down.double().numpy(),
        expert=expert,
    )
    got = reference_layer(torch, call).numpy()
    np.testing.assert_allclose(got, np.concatenate(wanted), rtol=1e-12, atol=1e-14)


def test_a_rank_has_its_own_tokens_and_experts():
    call = made()
    first, second = call.of_rank(0), call.of_rank(1)
    assert [len(part["x"]) for part in (first, second)] == [40, 40]
    assert torch.equal(second["x"], call.x[40:])
    assert [len(part["down"]) for part in (first, second)] == [3, 3]
    assert torch.equal(second["up"], call.up[3:])
    assert "up" in made("single").of_rank(0)


def test_every_draw_has_other_tokens_in_the_same_place():
    call = made()
    place, before = call.x.data_ptr(), call.x.clone()
    call.draw()
    assert call.x.data_ptr() == place
    assert not torch.equal(call.x, before)
    assert torch.allclose(call.weights.sum(dim=1), torch.ones(len(call.x)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mode", ["balanced", "stress_skew", "one_expert"])
@pytest.mark.parametrize("expert", EXPERTS)
def test_a_loop_over_experts_is_close_to_the_reference(expert: str, mode: str, dtype: str):
    call = made(expert, mode, dtype)
    out = call.new_output()
    loop_layer(torch, call, out)()
    assert compare(torch, out, reference_layer(torch, call), dtype).per_token < 2e-2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda out: None,
        lambda out: out[7].mul_(1.5),
        lambda out: out[7, 3].fill_(float("nan")),
        lambda out: out[7].zero_(),
        lambda out: out[0, 0].fill_(1e-3),  # token 0 must be zero
    ],
)
def test_errors_are_those_of_numpy(spoil: Callable[[Any], Any]):
    wanted = torch.from_numpy(np.random.default_rng(0).standard_normal((9, 16)))
    wanted[0] = 0
    out = wanted.to(torch.float16)
    spoil(out)
    host = to.reference.compare([out.numpy()], [wanted.numpy()], "float16")
    assert compare(torch, out, wanted, "float16") == pytest.approx(host)


def checked(call: Call, **changes: Callable[[Any], Any]) -> Any:
    """Loops over experts, each followed by a change of its output."""
    out = call.new_output()
    loop = loop_layer(torch, call, out)

    def launch(change: Callable[[Any], Any]) -> Callable[[], Any]:
        return lambda: (loop(), change(out))

    launches = {name: launch(change) for name, change in changes.items()}
    return check_layer(torch, call, out, launches, lambda: None, dtype="bfloat16")


def test_equal_and_close_results_are_right():
    result = checked(made(), serial=lambda out: None, overlapped=lambda out: None)
    assert result.ok
    result.require("bfloat16")


def test_one_bit_that_differs_is_refused_and_named():
    def flip(out: Any) -> None:
        out.view(torch.int16)[11, 5] ^= 1

    result = checked(made(), serial=lambda out: None, overlapped=flip)
    assert (result.within, result.differing, result.ok) == (True, ("overlapped",), False)
    with pytest.raises(WrongResult, match=r"bits differ.*overlapped"):
        result.require("bfloat16")


@pytest.mark.parametrize("change", [lambda out: out.mul_(1.1), lambda out: out[3].fill_(np.nan)])
def test_equal_results_that_are_off_the_reference_are_refused(change: Callable[[Any], Any]):
    result = checked(made(), serial=change, overlapped=change)
    assert (result.within, result.differing, result.ok) == (False, (), False)
    with pytest.raises(WrongResult, match=r"worst token is off by .*, allowed are 6.4e-02"):
        result.require("bfloat16")


def test_what_an_earlier_call_left_behind_is_refused():
    call = made()
    out = call.new_output()
    loop = loop_layer(torch, call, out)
    loop()
    stale = out.clone()
    launches = {"serial": loop, "overlapped": lambda: out.copy_(stale)}
    result = check_layer(torch, call, out, launches, lambda: None, dtype="bfloat16")
    assert result.differing == ("overlapped",)
    assert not result.within
