"""The executor for NVIDIA GPUs (stage execute), and the GPUs there are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import NamedTuple

from tileoverlap import _core
from tileoverlap._args import as_choice, as_instance, as_int
from tileoverlap.executor import Executor, Faults
from tileoverlap.placement import Placement
from tileoverlap.transport import Transport

__all__ = [
    "TRANSFERS",
    "CudaDevice",
    "CudaExecutor",
    "CudaFaults",
    "TileChoice",
    "choose_tile",
    "cuda_devices",
    "why_no_cuda_device",
]

TRANSFERS = ("ship", "store")
"""How overlapped calls return rows: a kernel on a few SMs ships them, or the GEMM, on all SMs,
stores them in the memory of their owners itself."""


class CudaDevice(NamedTuple):
    """A GPU, as far as plans and reports need it."""

    number: int
    name: str
    capability: tuple[int, int]
    """Compute capability, such as (9, 0)."""
    sms: int
    memory_bytes: int
    tiles: tuple[tuple[int, int], ...]
    """(tile_m, tile_n) that plans for bfloat16 may have."""

    @property
    def capability_number(self) -> int:
        """90 for 9.0."""
        major, minor = self.capability
        return 10 * major + minor


def cuda_devices() -> list[CudaDevice]:
    """All GPUs; empty where there is no GPU, no driver, or no CUDA in the library."""
    return [
        CudaDevice(
            number=device.number,
            name=device.name,
            capability=divmod(device.capability, 10),
            sms=device.sms,
            memory_bytes=device.memory_bytes,
            tiles=tuple(device.bfloat16_tiles),
        )
        for device in _core.cuda_devices()
    ]


class TileChoice(NamedTuple):
    """A tile and a group as in make_plan, and where they come from."""

    tile: tuple[int, int]
    group: int
    source: str
    """"measured on ...", "as on ..." (a GPU of the same compute capability), or "rule"."""


def choose_tile(
    device: CudaDevice, *, dtype: str, rows: int, experts: int, k: int, n: int
) -> TileChoice:
    """The tile that an experts' GEMM is fastest with, as measured for the nearest shape.

    Args:
        device: of cuda_devices().
        dtype: "bfloat16" or "float16".
        rows: copies that a rank computes in a call, mostly.
        experts: on a rank.
        k, n: depth, and width of a returned row, elements.

    Ranks must choose the same tile: ask for the mean of all ranks.
    """
    tile_m, tile_n, group, source = _core.choose_tile(
        device=device.name,
        capability=device.capability_number,
        dtype=dtype,
        rows=as_int("rows", rows),
        experts=as_int("experts", experts, low=1),
        k=as_int("k", k, low=1),
        n=as_int("n", n, low=1),
    )
    return TileChoice((tile_m, tile_n), group, source)


def why_no_cuda_device() -> str:
    """Why cuda_devices() is empty; "" where it is not."""
    return _core.why_no_cuda_device()


@dataclass(frozen=True, kw_only=True)
class CudaFaults(Faults):
    """Disorder and faults of the CUDA executor, for tests. shuffle_seed and max_delay_us act on
    what is sent back, not on tiles."""


class CudaExecutor(Executor):
    """One persistent GEMM a rank that raises a flag for every finished tile, and a kernel on a few
    SMs that ships finished rows to their owners meanwhile.

    The rules of a GPU, beyond those of CpuExecutor:

    - bfloat16 and float16 only; the tile must be one of cuda_devices()[..].tiles, such as the
      default (128, 128).
    - All tensors, ids and weights of slots too, lie on the rank's own device; x, rows, up, down,
      weights and out have rows that start at multiples of 16 bytes.
    - Work goes to the stream of each call (Session.run and MoeLayer.forward say which). A call
      returns when it is launched; only the first one of a session waits on the host, until all
      ranks have prepared. A layer finds bad ids on the device: synchronize() raises for them.
    - Ranks that share a device share its SMs, and each needs a stream of its own: on one stream a
      rank would wait for what stands behind it. Beyond two such ranks set
      CUDA_DEVICE_MAX_CONNECTIONS=32 before CUDA starts, or streams may share a queue.

    Results do not depend on `sms`, `comm_sms`, `transfer` or faults.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        sms: int | None = None,
        comm_sms: int | None = None,
        transfer: str = "ship",
        faults: CudaFaults | None = None,
    ) -> None:
        """Makes one rank's executor.

        Args:
            transport: this rank's, with memory on a GPU: of a DeviceWorld, or a MappedTransport.
            sms: SMs that this rank may use; None: those of its device, shared evenly among the
                ranks on it.
            comm_sms: of these, SMs that ship rows while the GEMM runs on the others; None:
                as many as predict.choose_split finds fastest for a call of as many tokens, spread
                evenly over the experts.
            transfer: "ship", or "store": all peers' memory must be mapped, and the GPU of compute
                capability 9.0. Then the GEMM has all of `sms`, and waits where the link is slower
                than it writes. Each rank chooses for itself.
            faults: disorder for tests.

        Raises:
            InvalidArgument: a transport on the CPU, a count that is not positive, another word for
                `transfer`. `prepare` raises it for counts that the device does not have, and where
                "store" is not possible.
            Error: the library was built without CUDA.
        """
        as_instance("transport", transport, Transport)
        chosen = CudaFaults() if faults is None else as_instance("faults", faults, CudaFaults)
        core = _core.make_cuda_executor(
            transport._core,
            sms=_as_count("sms", sms),
            comm_sms=_as_count("comm_sms", comm_sms),
            transfer=_core.Transfer[as_choice("transfer", transfer, TRANSFERS)],
            **asdict(chosen),
        )
        super().__init__(core, transport, cuda_device=transport._core.device[1])

    def _choose_tile(
        self, placement: Placement, dtype: str, k: int, n: int, rows: int
    ) -> tuple[tuple[int, int], int]:
        device = cuda_devices()[self._cuda_device or 0]
        experts = max(1, -(-placement.experts // placement.world))
        choice = choose_tile(device, dtype=dtype, rows=rows, experts=experts, k=k, n=n)
        return choice.tile, choice.group


def _as_count(name: str, value: int | None) -> int:
    return 0 if value is None else as_int(name, value, low=1)
