"""One rank of a world over NVSHMEM, for test_gpu_nvshmem.py: started by `tileoverlap launch`.

    nvshmem_rank.py SCENARIO [NAME=VALUE ...]

Ends with 0 where all is as it must be; what it found is its last line of output.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from gpu_support import GpuLayer, to_gpu, to_host
from support import (
    Layer,
    as_dtype,
    assert_close,
    nan_filled,
    random_ids,
    random_weights,
    same_bits,
)

import tileoverlap as to

Inputs = tuple[list[Any], list[np.ndarray], list[np.ndarray]]  # x, ids, weights of all ranks


class Options(dict[str, str]):
    """NAME=VALUE of the command line."""

    def number(self, name: str, default: int) -> int:
        return int(self.get(name, default))


class Case:
    """A layer's shape, its inputs, and what the ranks of one process make of them."""

    def __init__(self, options: Options, world: int) -> None:
        self.world = world
        self.dtype = options.get("dtype", "bfloat16")
        self.layout = options.get("layout", "compact")
        self.expert = options.get("expert", "single")
        self.top_k = options.number("top_k", 2)
        self.max_tokens = options.number("tokens", 64)
        self.hidden, self.inner = options.number("hidden", 72), options.number("inner", 40)
        experts = options.number("experts", 2 * world + 1)
        # The last rank has most experts, and the first none where there are enough ranks.
        begin = [0, *([0] if world > 2 else [])]
        while len(begin) < world:
            begin.append(begin[-1] + max(1, experts // world - 1))
        self.placement = (
            to.Placement([*begin, experts])
            if options.get("placement") == "uneven"
            else to.Placement.even(world=world, experts=experts)
        )

    def random(self, seed: int) -> Inputs:
        """Tokens by rank from 0 to the most there may be; one rank in four has none."""
        rng = np.random.default_rng(seed)
        ids = []
        for _ in range(self.world):
            tokens = 0 if rng.random() < 0.25 else int(rng.integers(0, self.max_tokens + 1))
            ids.append(random_ids(rng, tokens, self.top_k, self.placement.experts, skipped=0.1))
        return self.with_rows(rng, ids, [random_weights(rng, part) for part in ids])

    def with_rows(
        self, rng: np.random.Generator, ids: list[np.ndarray], weights: list[np.ndarray]
    ) -> Inputs:
        width = self.inner if self.expert == "single" else self.hidden
        x = [
            as_dtype(rng.standard_normal((len(part), width), np.float32), self.dtype)
            for part in ids
        ]
        return x, ids, weights

    def keywords(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "expert": self.expert,
            "hidden": self.hidden,
            "inner": self.inner,
            "top_k": self.top_k,
            "max_tokens": self.max_tokens,
            "layout": self.layout,
        }

    def in_process(self) -> GpuLayer:
        return GpuLayer(self.placement, **self.keywords())


class OnHost:
    """The same layer on the CPU executor: no other ranks on the GPU beside those tested."""

    def __init__(self, case: Case) -> None:
        keywords = case.keywords()
        del keywords["layout"]
        self.host = Layer(case.placement, **keywords)
        mine = [self.host.mine(rank) for rank in range(case.world)]
        up, down = self.host.up, self.host.down
        self.up = [None if up is None else to_gpu(up[part]) for part in mine]
        self.down = [to_gpu(down[part]) for part in mine]


class Rank:
    """This process's layer of a world over NVSHMEM."""

    def __init__(
        self, case: Case, transport: to.Transport, reference: GpuLayer | OnHost, **options: Any
    ) -> None:
        self.rank = transport.rank
        self.host = reference.host
        self.up, self.down = reference.up[self.rank], reference.down[self.rank]
        self.layer = to.CudaExecutor(transport, **options).prepare_layer(
            placement=case.placement, timeout_s=float(os.environ["LIMIT_S"]), **case.keywords()
        )

    def forward(self, inputs: Inputs, mode: str = "overlapped") -> Any:
        import torch

        x, ids, weights = (part[self.rank] for part in inputs)
        out = to_gpu(nan_filled((len(ids), self.host.hidden), self.host.dtype))
        tensors = [to_gpu(x), to_gpu(ids), to_gpu(weights)]
        self.layer.forward(
            *tensors,
            up=self.up,
            down=self.down,
            out=out,
            mode=mode,
            stream=torch.cuda.current_stream(),
        )
        self.layer.synchronize()
        return to_host(out)


def start_world(me: Any, options: Options) -> to.NvshmemWorld:
    return to.NvshmemWorld(
        me.rank, me.world, me.all_gather, map_peers=options.get("map_peers", "yes") == "yes"
    )


def disorder(rank: int) -> to.CudaFaults:
    return to.CudaFaults(poison=True, shuffle_seed=rank + 1, max_delay_us=20)


def soak(me: Any, options: Options) -> str:
    """Calls in random order over a pool of inputs: each gives the bits of the in-process world."""
    case, calls = Case(options, me.world), options.number("calls", 2000)
    with case.in_process() as reference:
        pool = [case.random(seed) for seed in range(options.number("pool", 48))]
        wanted = [reference.run(*inputs)[me.rank] for inputs in pool]
        return run_calls(me, options, case, reference, pool, wanted, calls)


def routings(me: Any, options: Options) -> str:
    """The router modes and, where it is there, real routing."""
    case = Case(options, me.world)
    rng = np.random.default_rng(7)
    routed = {
        mode: to.route(
            mode, placement=case.placement, tokens=case.max_tokens, top_k=case.top_k, seed=3
        )
        for mode in to.routing.MODES
    }
    if "trace" in options and me.world <= 4:
        routed["trace"] = to.load_trace(
            options["trace"],
            ranks=me.world,
            experts=case.placement.experts,
            layer=13,
            tokens=case.max_tokens,
            top_k=case.top_k,
        )
    with case.in_process() as reference:
        pool = [
            case.with_rows(rng, [part.ids for part in parts], [part.weights for part in parts])
            for parts in routed.values()
        ]
        wanted = [reference.run(*inputs)[me.rank] for inputs in pool]
        said = run_calls(me, options, case, reference, pool, wanted, 4 * len(pool))
    return f"{said} ({', '.join(routed)})"


def run_calls(
    me: Any,
    options: Options,
    case: Case,
    reference: GpuLayer,
    pool: list[Inputs],
    wanted: list[Any],
    calls: int,
) -> str:
    order = np.random.default_rng(11)
    with start_world(me, options) as world:
        transfer = options.get("transfer", "ship")
        rank = Rank(case, world.transport, reference, faults=disorder(me.rank), transfer=transfer)
        begin = time.monotonic()
        for call in range(calls):
            at = int(order.integers(len(pool))) if call >= len(pool) else call
            got = rank.forward(pool[at], "serial" if call % 8 == 7 else "overlapped")
            assert same_bits([got], [wanted[at]]), f"call {call}, inputs {at}: wrong bits"
        took = time.monotonic() - begin
        said = f"{calls} calls equal, {1e6 * took / max(1, calls):.0f} us a call, {world!r}"
        rank.layer.close()
    return said


def stores_refused(me: Any, options: Options) -> str:
    """What needs mapped memory is refused where peers are reached by puts, and nothing else is."""
    case = Case(options, me.world)
    with case.in_process() as reference, start_world(me, options) as world:
        said = refused(
            lambda: Rank(case, world.transport, reference, transfer="store"), to.InvalidArgument
        )
        assert "transfer = store" in said, said
        rank = Rank(case, world.transport, reference)
        inputs = case.random(1)
        assert same_bits([rank.forward(inputs)], [reference.run(*inputs)[me.rank]])
        rank.layer.close()
    return said


def by_itself(me: Any, options: Options) -> str:
    """Whatever the environment asks of the driver: the CPU's result within rounding, the same bits
    in both modes. beside=threads: another thread makes and frees streams and memory meanwhile, and
    two threads call."""
    case, calls = Case(options, me.world), options.number("calls", 20)
    reference = OnHost(case)
    with start_world(me, options) as world:  # the first that this process does on the GPU
        rank = Rank(case, world.transport, reference)
        for call in range(calls):
            inputs = case.random(call % 7)
            with contextlib.ExitStack() as beside:
                if options.get("beside") == "threads":
                    beside.enter_context(driver_calls())
                    got = both(lambda inputs=inputs: rank.forward(inputs))
                else:
                    got = [rank.forward(inputs), rank.forward(inputs, "serial")]
            assert same_bits([got[0]], [got[1]]), f"call {call}: two results"
            assert_close(got[:1], [reference.host.reference(*inputs)[me.rank]], case.dtype)
        rank.layer.close()
    return f"{calls} calls right"


def both(call: Callable[[], Any]) -> list[Any]:
    """From two threads at once."""
    with ThreadPoolExecutor(2) as threads:
        return [done.result() for done in [threads.submit(call) for _ in range(2)]]


@contextlib.contextmanager
def driver_calls() -> Iterator[None]:
    """While it lasts, a thread makes and frees streams and memory."""
    import torch

    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            torch.cuda.Stream(priority=-1)
            torch.empty(1 << 20, device="cuda")
            torch.cuda.empty_cache()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def killed(me: Any, options: Options) -> str:
    """One rank ends itself in the middle; the others name it within the limit, and leave."""
    case, victim = Case(options, me.world), options.number("victim", 1)
    limit = float(os.environ["LIMIT_S"])
    with case.in_process() as reference:
        pool = [case.random(seed) for seed in range(8)]
        world = start_world(me, options)
        rank = Rank(case, world.transport, reference)
        for inputs in pool:
            rank.forward(inputs)
        if me.rank == victim:
            print("about to be killed", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        begin = time.monotonic()
        said = ""
        try:
            for call in range(1000):
                rank.forward(pool[call % len(pool)])
        except to.Error as error:
            said = str(error)
        took = time.monotonic() - begin
        assert f"rank {victim}" in said, f"after {took:.1f} s: {said or 'no error'}"
        assert took < 2 * limit + 5, f"{took:.1f} s with a limit of {limit} s"
        try:
            rank.layer.close()
            rank = Rank(case, world.transport, reference)
        except to.Error as error:
            again = str(error)
        else:
            raise AssertionError("the group can be used again")
        try:
            world.close()
        except to.Error as error:
            return f"after {took:.1f} s: {said} | prepare: {again} | close: {error}"
        raise AssertionError("NVSHMEM was ended without a rank")


def late(me: Any, options: Options) -> str:
    """The last rank comes late."""
    if me.rank == me.world - 1:
        time.sleep(options.number("seconds", 20))
    return soak(me, options)


def late_call(me: Any, options: Options) -> str:
    """The last rank makes its second call late."""
    case = Case(options, me.world)
    with case.in_process() as reference:
        pool = [case.random(seed) for seed in range(2)]
        wanted = [reference.run(*inputs)[me.rank] for inputs in pool]
        with start_world(me, options) as world:
            rank = Rank(case, world.transport, reference)
            assert same_bits([rank.forward(pool[0])], [wanted[0]])
            if me.rank == me.world - 1:
                time.sleep(options.number("seconds", 20))
            assert same_bits([rank.forward(pool[1])], [wanted[1]])
            rank.layer.close()
    return "equal"


def groups(me: Any, options: Options) -> str:
    """Two groups side by side, and the whole world afterwards."""
    half = me.world // 2
    ranks = list(range(half)) if me.rank < half else list(range(half, me.world))
    store = f"{os.environ['TILEOVERLAP_STORE']}.group{ranks[0]}"
    with start_world(me, options) as world:
        gather = to.bootstrap.tcp(ranks.index(me.rank), len(ranks), store)
        transport = world.group(ranks, 64 << 20, gather)
        for part, members in ((transport, len(ranks)), (world.transport, me.world)):
            case = Case(options, members)
            with case.in_process() as reference:
                pool = [case.random(seed) for seed in range(8)]
                rank = Rank(case, part, reference, faults=disorder(me.rank))
                for inputs in pool:
                    wanted = reference.run(*inputs)[part.rank]
                    assert same_bits([rank.forward(inputs)], [wanted]), f"{part!r}: wrong bits"
                rank.layer.close()
    return f"groups of {half} and {me.world - half}, then {me.world}: equal"


def memory(me: Any, options: Options) -> str:
    """Layers of growing size, one after the other and two at a time."""
    with start_world(me, options) as world:
        for tokens in (16, 64, 256, 64, 16):
            case = Case(Options(options, tokens=str(tokens)), me.world)
            with case.in_process() as reference:
                inputs = case.random(tokens)
                wanted = reference.run(*inputs)[me.rank]
                pair = [Rank(case, world.transport, reference) for _ in range(2)]
                for rank in pair:
                    assert same_bits([rank.forward(inputs)], [wanted])
                for rank in pair:
                    rank.layer.close()
        said = repr(world.transport)
    return said


def mismatch(me: Any, options: Options) -> str:
    """Ranks that do not fit together: refused on all, naming both values, and usable afterwards."""
    with start_world(me, options) as world:
        case = Case(Options(options, tokens="32" if me.rank == 0 else "48"), me.world)
        with case.in_process() as reference:
            said = refused(lambda: Rank(case, world.transport, reference), to.InvalidArgument)
            assert "max_tokens=32" in said, said
            assert "max_tokens=48" in said, said
        case = Case(options, me.world)
        with case.in_process() as reference:
            inputs = case.random(1)
            rank = Rank(case, world.transport, reference)
            assert same_bits([rank.forward(inputs)], [reference.run(*inputs)[me.rank]])
            error = refused(world.close, to.Error)
            assert "still holds" in error, error
            rank.layer.close()
        world.close()
        world.close()
        closed = refused(lambda: world.transport, to.Error)
        assert "closed" in closed, closed
    return said


def worlds_differ(me: Any, options: Options) -> str:
    """A rank count that differs between ranks."""
    said = refused(
        lambda: to.NvshmemWorld(me.rank, me.world + (me.rank == 1), me.all_gather), to.Error
    )
    assert str(me.world) in said, said
    assert str(me.world + 1) in said, said
    return said


def captured(me: Any, options: Options) -> str:
    """NVSHMEM is not started while a graph is being captured."""
    import torch

    graph = torch.cuda.CUDAGraph()
    said = ""
    try:
        with torch.cuda.graph(graph):
            try:
                start_world(me, options)
            except to.Error as error:
                said = str(error)
    except RuntimeError:
        pass  # the capture is spoilt by what was tried
    assert "captured" in said, said or "it was started"
    return said


def framework(me: Any, options: Options) -> str:
    """NVSHMEM that somebody else has started in this process is used, and left running."""
    import ctypes
    import importlib.util

    import torch

    spec = importlib.util.find_spec("nvidia.nvshmem")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    path = Path(next(iter(spec.submodule_search_locations))) / "lib" / "libnvshmem_host.so.3"
    host = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    unique_id = (ctypes.c_char * 128)()
    ctypes.cast(unique_id, ctypes.POINTER(ctypes.c_int))[0] = (1 << 16) + 128
    if me.rank == 0:
        assert host.nvshmemx_get_uniqueid(ctypes.byref(unique_id)) == 0
    unique_id.raw = me.all_gather(unique_id.raw)[0]
    attributes = (ctypes.c_char * 144)()
    words = ctypes.cast(attributes, ctypes.POINTER(ctypes.c_int))
    words[0] = (1 << 16) + 144
    assert (
        host.nvshmemx_set_attr_uniqueid_args(
            me.rank, me.world, ctypes.byref(unique_id), ctypes.byref(attributes)
        )
        == 0
    )
    assert host.nvshmemx_hostlib_init_attr(1 << 3, ctypes.byref(attributes)) == 0
    said = soak(me, options)
    assert host.nvshmem_n_pes() == me.world  # still there
    host.nvshmemx_hostlib_finalize()
    return said


def one_call(me: Any, options: Options, world: to.NvshmemWorld) -> Rank:
    """A layer after a call that was right."""
    case = Case(options, me.world)
    with case.in_process() as reference:
        inputs = case.random(1)
        wanted = reference.run(*inputs)[me.rank]
        rank = Rank(case, world.transport, reference)
        assert same_bits([rank.forward(inputs)], [wanted])
    return rank


KEPT: list[Any] = []
"""Held to the end of the process."""


def not_closed(me: Any, options: Options) -> str:
    """The script ends without closing anything; one rank does so earlier than the others."""
    world = start_world(me, options)
    KEPT.extend([world, one_call(me, options, world)])
    time.sleep(0 if me.rank == 0 else options.number("seconds", 2))
    return "left open"


def torch_group(me: Any, options: Options) -> str:
    """NVSHMEM set up over a torch group that is destroyed before it, or after it."""
    from torch import distributed

    distributed.init_process_group("gloo", rank=me.rank, world_size=me.world)
    gather = to.bootstrap.from_torch() if options["first"] == "world" else me.all_gather
    world = to.NvshmemWorld(me.rank, me.world, gather)
    layer = one_call(me, options, world).layer
    if options["first"] == "group":
        distributed.destroy_process_group()
    layer.close()
    world.close()
    if options["first"] == "world":
        distributed.destroy_process_group()
    return f"{options['first']} first"


def other_order(me: Any, options: Options) -> str:
    """Rank 1 never comes to the start: rank 0 is told so at the limit."""
    if me.rank == 1:
        time.sleep(float(os.environ["LIMIT_S"]) + 2)
        return "did not come"
    said = refused(lambda: start_world(me, options), to.WaitTimeout)
    assert "rank 1" in said, said
    return said


def second_world(me: Any, options: Options) -> str:
    """The open world is given again, and no other one besides."""
    with start_world(me, options) as world:
        again = start_world(me, options)
        assert repr(again) == repr(world)
        said = refused(lambda: to.NvshmemWorld(me.rank, me.world + 2, me.all_gather), to.Error)
        assert f"of {me.world} " in said, said
        assert f"of {me.world + 2}" in said, said
        one_call(me, options, again).layer.close()
    return said


def small_heap(me: Any, options: Options) -> str:
    """More than the symmetric heap holds: the bytes and the variable are named on all ranks."""
    with start_world(me, options) as world:
        large = Options(options, tokens=options.get("large", "2000000"))
        case = Case(large, me.world)
        said = refused(
            lambda: to.CudaExecutor(world.transport).prepare_layer(
                placement=case.placement, **case.keywords()
            ),
            to.Error,
        )
        assert "NVSHMEM_SYMMETRIC_SIZE" in said, said
        one_call(me, options, world).layer.close()
    return said


def again_and_again(me: Any, options: Options) -> str:
    """Layers made, called and closed: memory does not grow."""
    import torch

    with start_world(me, options) as world:
        case = Case(options, me.world)
        free = []
        with case.in_process() as reference:
            inputs = case.random(1)
            wanted = reference.run(*inputs)[me.rank]
            for turn in range(options.number("turns", 100)):
                rank = Rank(case, world.transport, reference)
                assert same_bits([rank.forward(inputs)], [wanted]), f"turn {turn}"
                rank.layer.close()
                del rank
                me.all_gather(b"")  # the ranks share the GPU whose free memory is asked for
                if turn in (9, options.number("turns", 100) - 1):
                    free.append(torch.cuda.mem_get_info()[0])
                me.all_gather(b"")
        said = repr(world.transport)
    assert free[1] >= free[0] - (8 << 20), f"{free[0] - free[1]} bytes less are free"
    return said


def no_peer_access(me: Any, options: Options) -> str:
    """Where NVSHMEM can reach no peer it is an error, and the process lives; else it is right."""
    try:
        with start_world(me, options) as world:
            one_call(me, options, world).layer.close()
    except to.Error as error:
        return str(error)
    return "reached all the same"


def missing_call(me: Any, options: Options) -> str:
    """Rank 1 makes no second call: the others say so, and the GPU stays usable."""
    import torch

    limit = float(os.environ["LIMIT_S"])
    case = Case(options, me.world)
    with case.in_process() as reference:
        inputs = case.random(1)
        world = start_world(me, options)
        rank = Rank(case, world.transport, reference)
        rank.forward(inputs)
        if me.rank == 1:
            time.sleep(2 * limit + 5)
            KEPT.extend([world, rank])
            return "made no call"
        said = refused(lambda: rank.forward(inputs), to.WaitTimeout)
        assert "of rank 1" in said, said
        assert "epoch 2" in said, said
        assert float(torch.ones(4, device="cuda").sum()) == 4.0
        refused(lambda: rank.forward(inputs), to.WaitTimeout)
        KEPT.extend([world, rank])
    return said


def refused(call: Callable[[], Any], kind: type[Exception]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it was not refused")


def main() -> None:
    options = Options(argument.split("=", 1) for argument in sys.argv[2:])
    os.environ.setdefault("LIMIT_S", "60")
    me = to.bootstrap.from_environment()
    scenario = globals()[sys.argv[1]]
    print(f"{sys.argv[1]}: {scenario(me, options)}", flush=True)


if __name__ == "__main__":
    main()
