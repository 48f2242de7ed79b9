"""One expert layer over four ranks of this process: 16 experts, top-2, float32."""

import numpy as np

import tileoverlap as to

ranks, experts, tokens, top_k, hidden, inner = 4, 16, 32, 2, 64, 32
placement = to.Placement.even(world=ranks, experts=experts)
world = to.World(ranks)
rng = np.random.default_rng(0)

layers, outs = [], []
for r in range(ranks):
    executor = to.CpuExecutor(world.transport(r))
    layers.append(
        executor.prepare_layer(
            placement=placement,
            dtype="float32",
            expert="gelu",
            hidden=hidden,
            inner=inner,
            top_k=top_k,
            max_tokens=tokens,
        )
    )
for r, layer in enumerate(layers):  # every rank starts its call; nobody waits yet
    x = rng.standard_normal((tokens, hidden), dtype=np.float32)
    ids = rng.integers(0, experts, (tokens, top_k), dtype=np.int32)  # -1 would mean: no copy
    gates = np.full((tokens, top_k), 1 / top_k, dtype=np.float32)
    local = placement.experts_on(r)
    up = rng.standard_normal((local, inner, hidden), dtype=np.float32)
    down = rng.standard_normal((local, hidden, inner), dtype=np.float32)
    outs.append(np.empty((tokens, hidden), dtype=np.float32))
    layer.forward(x, ids, gates, up=up, down=down, out=outs[r])
for layer in layers:
    layer.synchronize()  # raises WaitTimeout naming who waited for whom, should a rank be missing
print(outs[0].shape, np.isfinite(outs[0]).all())
