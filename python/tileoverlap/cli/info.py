"""tileoverlap info: what a bug report needs to know of this machine. No paths, no names."""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
from importlib import metadata
from typing import Any

import numpy as np

from tileoverlap import __version__, _core
from tileoverlap.cli._output import print_json
from tileoverlap.cuda_executor import cuda_devices, why_no_cuda_device

__all__ = ["add_parser"]

_CUDA_SUCCESS = 0
# CUdevice_attribute
_SM_COUNT, _CC_MAJOR, _CC_MINOR = 16, 75, 76


def add_parser(commands: Any) -> None:
    """Adds the command to the argument parser."""
    parser = commands.add_parser(
        "info",
        help="report versions, devices and settings",
        description="Reports what a bug report needs.",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.set_defaults(command=_info)


def _info(options: argparse.Namespace) -> int:
    report = collect()
    if options.json:
        print_json(report)
    else:
        _print(report)
    return 0


def collect() -> dict[str, Any]:
    """The report."""
    return {
        "tileoverlap": __version__,
        "build": _core.build_info(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": np.__version__,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "cpu": {"model": _cpu_model(), "cores": os.cpu_count(), "usable": usable_cores()},
        "memory_bytes": memory_bytes(),
        "cuda": _cuda(),
        "gpus": _gpus(),
        "nvshmem": _wheels("nvidia-nvshmem-cu"),
        "torch": _version("torch"),
        "environment": {
            entry["name"]: entry["value"] if entry["is_set"] else None for entry in _core.list_env()
        },
    }


def memory_bytes() -> int | None:
    """Physical memory, or None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_model() -> str | None:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or None


def _version(package: str) -> str | None:
    """The installed version, without importing the package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _wheels(prefix: str) -> dict[str, str]:
    found = {}
    for distribution in metadata.distributions():
        name = distribution.metadata["Name"]
        if name and name.lower().startswith(prefix):
            found[name] = distribution.version
    return found


def _gpus() -> dict[str, Any]:
    """GPUs that the library can use, or why there is none."""
    return {
        "devices": [
            {
                "name": device.name,
                "compute_capability": "{}.{}".format(*device.capability),
                "sms": device.sms,
                "memory_bytes": device.memory_bytes,
                "tiles": [list(tile) for tile in device.tiles],
            }
            for device in cuda_devices()
        ],
        "why_none": why_no_cuda_device() or None,
    }


def _cuda() -> dict[str, Any]:
    """Driver and devices, asked of the driver itself, which may be missing."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        code = driver.cuInit(0)
    except (OSError, AttributeError):
        return {"driver": None, "devices": []}
    version, number = ctypes.c_int(), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    report: dict[str, Any] = {
        "driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "devices": [],
    }
    if code != _CUDA_SUCCESS:
        return {**report, "error": f"cuInit returned {code}"}
    driver.cuDeviceGetCount(ctypes.byref(number))
    for ordinal in range(number.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        driver.cuDeviceGet(ctypes.byref(device), ordinal)
        driver.cuDeviceGetName(name, len(name), device)
        sms, major, minor = (
            _attribute(driver, which, device) for which in (_SM_COUNT, _CC_MAJOR, _CC_MINOR)
        )
        report["devices"].append(
            {
                "name": name.value.decode(errors="replace"),
                "compute_capability": f"{major}.{minor}",
                "sms": sms,
            }
        )
    return report


def _attribute(driver: Any, which: int, device: ctypes.c_int) -> int:
    value = ctypes.c_int()
    driver.cuDeviceGetAttribute(ctypes.byref(value), which, device)
    return value.value


def _print(report: dict[str, Any]) -> None:
    build, cpu, cuda = report["build"], report["cpu"], report["cuda"]
    parts = [name for name in ("cuda", "nvshmem") if build[name]]
    memory = report["memory_bytes"]
    rows = [
        ("tileoverlap", report["tileoverlap"]),
        (
            "built with",
            f"{build['compiler']}, DLPack {build['dlpack']}, nanobind {build['nanobind']}",
        ),
        (
            "built for",
            ", ".join(["cpu", *parts]) + (", with assertions" if build["assertions"] else ""),
        ),
        ("python", f"{report['python']}, numpy {report['numpy']}"),
        ("os", ", ".join(filter(None, [report["os"], report["libc"]]))),
        (
            "cpu",
            f"{cpu['usable']} of {cpu['cores']} cores usable, {cpu['model'] or 'model unknown'}",
        ),
        ("memory", "unknown" if memory is None else f"{memory / 2**30:.1f} GiB"),
        ("cuda driver", cuda["driver"] or "none"),
    ]
    if "error" in cuda:
        rows.append(("", cuda["error"]))
    gpus = report["gpus"]
    # Where the library has them, it says more of them than the driver.
    for number, device in enumerate([] if gpus["devices"] else cuda["devices"]):
        rows.append(
            (
                f"device {number}",
                f"{device['name']}, {device['compute_capability']}, {device['sms']} SMs",
            )
        )
    if gpus["why_none"] is not None:
        rows.append(("gpu", f"none: {gpus['why_none']}"))
    for number, device in enumerate(gpus["devices"]):
        tiles = ", ".join(f"{m} x {n}" for m, n in device["tiles"])
        rows.append(
            (
                f"gpu {number}",
                f"{device['name']}, {device['compute_capability']}, {device['sms']} SMs, "
                f"{device['memory_bytes'] / 2**30:.1f} GiB, tiles {tiles or 'none'}",
            )
        )
    wheels = ", ".join(f"{name} {version}" for name, version in report["nvshmem"].items())
    rows.append(("nvshmem", wheels or "no wheel installed"))
    rows.append(("torch", report["torch"] or "not installed"))
    for name, value in report["environment"].items():
        rows.append((name, "not set" if value is None else value))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
