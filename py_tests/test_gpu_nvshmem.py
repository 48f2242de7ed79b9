"""Ranks in processes over NVSHMEM, all on one GPU: the same bits as ranks of one process, and what
happens where ranks are late, missing or do not fit. The ranks run nvshmem_rank.py."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gpu_support import DTYPES, gpu_marks, needs_stores

import tileoverlap as to

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
HERE = Path(__file__).resolve().parent
MPS = HERE.parent / "tools" / "mps_ranks.sh"
CALLS = int(os.environ.get("TILEOVERLAP_NVSHMEM_CALLS", "200"))


def why_not() -> str:
    """Why these tests cannot run; "" where they can."""
    if not to._core.build_info()["nvshmem"]:
        return "the library was built without NVSHMEM"
    if "NVSHMEM_ROOT" in os.environ:
        return ""
    with contextlib.suppress(ModuleNotFoundError):  # where nothing of "nvidia" is installed
        if importlib.util.find_spec("nvidia.nvshmem") is not None:
            return ""
    return "needs nvidia-nvshmem-cu13 or NVSHMEM_ROOT"


pytestmark = [*gpu_marks(), pytest.mark.skipif(bool(why_not()), reason=why_not())]
needs_mps = pytest.mark.skipif(
    shutil.which("nvidia-cuda-mps-control") is None, reason="needs nvidia-cuda-mps-control"
)


def launch(ranks: int, scenario: str, *, mps: bool = True, **options: Any) -> str:
    """Runs the scenario on all ranks; what they printed. Further options: as run()."""
    command = [str(MPS)] if mps else [sys.executable, "-m", "tileoverlap", "launch"]
    return run([*command, "-n", str(ranks)], scenario, **options)


def run(
    launcher: list[str],
    scenario: str,
    *,
    code: int = 0,
    limit_s: int = 60,
    variables: dict[str, str] | None = None,
    **options: Any,
) -> str:
    command = [*launcher, str(HERE / "nvshmem_rank.py"), scenario]
    command += [f"{name}={value}" for name, value in options.items()]
    return start(command, code=code, limit_s=limit_s, **(variables or {}))


def start(command: list[str], *, code: int = 0, limit_s: int = 60, **variables: str) -> str:
    variables = {
        # Of this process alone: the launcher divides what there is.
        **{name: value for name, value in os.environ.items() if name != QUEUES},
        "PYTHON": sys.executable,
        "LIMIT_S": str(limit_s),
        "TILEOVERLAP_TIMEOUT_S": str(limit_s),
        "NVSHMEM_DISABLE_NVLS": "1",
        **variables,
    }
    done = subprocess.run(
        command, env=variables, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
    print(done.stdout)
    return done.stdout


@needs_mps
@pytest.mark.parametrize("map_peers", ["yes", "no"], ids=["mapped", "puts"])
@pytest.mark.parametrize("layout", ["compact", "owner_aligned"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_four_ranks_give_the_bits_of_ranks_of_one_process(dtype: str, layout: str, map_peers: str):
    said = launch(4, "soak", calls=CALLS, dtype=dtype, layout=layout, map_peers=map_peers)
    assert said.count(f"{CALLS} calls equal") == 4


@needs_mps
@needs_stores()
@pytest.mark.parametrize("dtype", DTYPES)
def test_four_ranks_whose_gemms_store_rows_at_their_owners(dtype: str):
    said = launch(4, "soak", calls=CALLS, dtype=dtype, transfer="store")
    assert said.count(f"{CALLS} calls equal") == 4


@needs_mps
@needs_stores()
def test_rows_are_not_stored_where_memory_is_not_mapped():
    said = launch(2, "stores_refused", map_peers="no")
    assert said.count("NVSHMEM's puts") == 2


@needs_mps
@pytest.mark.parametrize("map_peers", ["yes", "no"], ids=["mapped", "puts"])
def test_router_modes_and_real_routing(map_peers: str, real_trace: Path):
    options = {"experts": 64, "top_k": 6, "tokens": 1024, "hidden": 256, "inner": 128}
    said = launch(4, "routings", trace=real_trace, map_peers=map_peers, **options)
    assert said.count("trace") == 4


@needs_mps
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("map_peers", ["yes", "no"], ids=["mapped", "puts"])
def test_uneven_experts_on_other_numbers_of_ranks(ranks: int, map_peers: str):
    launch(
        ranks,
        "soak",
        calls=CALLS // 4,
        placement="uneven",
        expert="silu_gate",
        experts=11,
        map_peers=map_peers,
    )


@pytest.mark.parametrize("map_peers", ["yes", "no"], ids=["mapped", "puts"])
def test_without_mps_ranks_take_turns(map_peers: str):
    launch(2, "soak", mps=False, calls=10, pool=5, tokens=16, map_peers=map_peers)


@needs_mps
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_command_line_runs_a_rank_a_process(ranks: int):
    command = [str(MPS), "-n", str(ranks), "--no-prefix", "tileoverlap", "run", "--json"]
    report = json.loads(start(command))
    assert report["correct"]
    assert report["options"]["transport"] == "nvshmem"
    assert len(report["ranks"]) == ranks


def test_torchrun_starts_ranks():
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run(torchrun, "soak", calls=10, pool=5, tokens=16)


def test_mpirun_starts_ranks():
    pytest.importorskip("mpi4py", reason="needs mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun")
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    run(mpirun, "soak", calls=10, pool=5, tokens=16)


@needs_mps
def test_groups_of_ranks_side_by_side():
    launch(4, "groups")


@needs_mps
@pytest.mark.parametrize("map_peers", ["yes", "no"], ids=["mapped", "puts"])
def test_memory_is_used_again_and_grows(map_peers: str):
    launch(2, "memory", map_peers=map_peers)


@needs_mps
def test_ranks_that_do_not_fit_are_refused_and_can_correct_themselves():
    launch(2, "mismatch")


def test_a_rank_count_that_differs_is_named():
    said = launch(2, "worlds_differ", mps=False)
    assert "2" in said
    assert "3" in said


def test_nvshmem_is_not_started_inside_a_capture():
    launch(1, "captured", mps=False)


@needs_mps
def test_nvshmem_that_the_framework_has_started_is_used():
    launch(2, "framework", calls=20, pool=8)


@needs_mps
def test_ranks_that_come_late_are_waited_for():
    launch(3, "late", seconds=20, calls=10, pool=5)
    launch(3, "late_call", seconds=20)


@pytest.mark.case("D11.3")
@pytest.mark.case("D11.8")
@needs_mps
def test_scripts_that_close_nothing_end_with_0():
    said = launch(3, "not_closed")
    assert said.count("left open") == 3


@pytest.mark.case("D11.4")
@needs_mps
@pytest.mark.parametrize("first", ["group", "world"])
def test_torch_groups_are_destroyed_before_or_after(first: str):
    launch(2, "torch_group", first=first)


@pytest.mark.case("D11.2")
def test_a_rank_that_does_not_come_to_the_start_is_named():
    launch(2, "other_order", mps=False, limit_s=5)


@pytest.mark.case("D11.1")
@needs_mps
def test_a_process_has_one_world():
    launch(2, "second_world")


@pytest.mark.case("D11.5")
@needs_mps
@pytest.mark.parametrize("order", ["program_first", "library_first"])
def test_a_program_with_nvshmem_kernels_of_its_own(order: str):
    program = os.environ.get("TILEOVERLAP_NVSHMEM_PROGRAM", "")
    if not program:
        pytest.skip(
            "needs TILEOVERLAP_NVSHMEM_PROGRAM, the path of the build's cpp_tests/nvshmem_program"
        )
    assert start([str(MPS), "-n", "2", program, order]).count("20 rounds right") == 2


@pytest.mark.case("D11.7")
@needs_mps
def test_a_heap_that_is_too_small_is_named():
    # Without memory that grows, so that the size holds.
    variables = {"NVSHMEM_SYMMETRIC_SIZE": "64M", "NVSHMEM_DISABLE_CUDA_VMM": "1"}
    said = launch(2, "small_heap", variables=variables)
    assert said.count("64M") == 2


@pytest.mark.case("D11.9")
@needs_mps
def test_a_hundred_layers_leave_no_memory_behind():
    launch(2, "again_and_again")


@pytest.mark.case("D6.5")
@pytest.mark.case("D6.6")
@pytest.mark.case("D6.9")
@pytest.mark.case("D11.6")
@needs_mps
@pytest.mark.parametrize(
    "variables",
    [
        {"CUDA_MODULE_LOADING": "LAZY"},
        {"CUDA_LAUNCH_BLOCKING": "1"},
        {QUEUES: "1"},
        {QUEUES: "8"},
        {QUEUES: "32"},
    ],
    ids=lambda variables: "-".join(f"{name}={value}" for name, value in variables.items()),
)
def test_whatever_the_environment_asks_of_the_driver(variables: dict[str, str]):
    assert launch(2, "by_itself", variables=variables).count("20 calls right") == 2


@pytest.mark.case("D6.8")
@pytest.mark.case("D6.11")
@needs_mps
@pytest.mark.parametrize("map_peers", ["yes", "no"], ids=["mapped", "puts"])
def test_threads_call_and_others_make_and_free_streams_and_memory(map_peers: str):
    said = launch(2, "by_itself", beside="threads", calls=50, map_peers=map_peers)
    assert said.count("50 calls right") == 2


@pytest.mark.case("D14.2")
@needs_mps
def test_without_peer_access_the_process_lives():
    said = launch(2, "no_peer_access", variables={"NVSHMEM_DISABLE_P2P": "1"}, limit_s=20)
    # Where there is a network, the ranks meet over it.
    assert said.count("finds no way from rank") == 2 or said.count("reached all the same") == 2


@pytest.mark.case("D15.1")
@pytest.mark.case("D15.3")
@needs_mps
def test_a_rank_that_makes_no_call_is_named_and_the_gpu_stays_usable():
    launch(4, "missing_call", limit_s=5)


@pytest.mark.case("D15.2")
@pytest.mark.parametrize("mps", [False, pytest.param(True, marks=needs_mps)], ids=["turns", "mps"])
@pytest.mark.parametrize("map_peers", ["yes", "no"], ids=["mapped", "puts"])
def test_a_killed_rank_is_named_by_all_others_within_the_limit(mps: bool, map_peers: str):
    said = launch(
        3, "killed", mps=mps, code=128 + 9, limit_s=10, victim=1, tokens=16, map_peers=map_peers
    )
    survivors = [line for line in said.splitlines() if "killed:" in line]
    assert len(survivors) == 2, said
    assert all("rank 1" in line for line in survivors)
