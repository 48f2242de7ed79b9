"""The arguments that say on which GPU and over which links a prediction is made."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace

from tileoverlap.cli._parser import UsageError, count
from tileoverlap.cuda_executor import cuda_devices
from tileoverlap.predict import GpuRates, LinkRates, gpu_rates

__all__ = ["add_gpu_arguments", "add_link_arguments", "gpu_of", "link_of", "rate"]

_MEASURED = ("NVIDIA H200", 90, 132)
"""Taken where this machine has no GPU and none is named: name, compute capability, SMs."""


def rate(text: str) -> float:
    """A number >= 0: GB/s or us."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got '{text}'") from None
    if not (math.isfinite(value) and 0 <= value <= 1e9):
        raise argparse.ArgumentTypeError(f"must lie in 0..1e9, got {text}")
    return value


def add_gpu_arguments(parser: argparse.ArgumentParser) -> None:
    """--gpu --gpu-capability --gpu-sms --gemm-scale"""
    parser.add_argument(
        "--gpu",
        metavar="NAME",
        help="whose measured rates are taken; unless given this machine's first GPU, else "
        f"{_MEASURED[0]}",
    )
    parser.add_argument(
        "--gpu-capability",
        type=count(10, 9999),
        metavar="N",
        help="90 for 9.0; of a --gpu that was not measured",
    )
    parser.add_argument(
        "--gpu-sms", type=count(2, 65536), metavar="S", help="of a --gpu that was not measured"
    )
    parser.add_argument(
        "--gemm-scale",
        type=rate,
        metavar="X",
        help="of this GPU's GEMM times over the measured ones",
    )


def gpu_of(options: argparse.Namespace) -> GpuRates:
    """The rates that add_gpu_arguments asks for. Raises UsageError."""
    name, capability, sms = _MEASURED
    devices = cuda_devices()
    if options.gpu is None and devices:
        name, capability, sms = devices[0].name, devices[0].capability_number, devices[0].sms
    elif options.gpu is not None:
        name = options.gpu
    rates = gpu_rates(
        name,
        capability=options.gpu_capability or capability,
        sms=options.gpu_sms or sms,
    )
    if options.gemm_scale is not None:
        if options.gemm_scale == 0:
            raise UsageError("argument --gemm-scale: must be above 0")
        rates = replace(rates, gemm_scale=options.gemm_scale * rates.gemm_scale)
    return rates


def add_link_arguments(parser: argparse.ArgumentParser) -> None:
    """--link-gbs --link-latency-us --domain --network-gbs --network-latency-us"""
    usual = LinkRates()
    parser.add_argument(
        "--link-gbs",
        type=rate,
        default=usual.gbs,
        metavar="GBS",
        help="that a rank sends inside its domain, and receives; 0: as fast as SMs ship",
    )
    parser.add_argument("--link-latency-us", type=rate, default=usual.latency_us, metavar="US")
    parser.add_argument(
        "--domain",
        type=count(0),
        default=usual.domain,
        metavar="D",
        help="ranks that reach each other's memory (NVLink); 0: all",
    )
    parser.add_argument(
        "--network-gbs",
        type=rate,
        default=usual.network_gbs,
        metavar="GBS",
        help="that a rank sends to other domains, and receives",
    )
    parser.add_argument(
        "--network-latency-us", type=rate, default=usual.network_latency_us, metavar="US"
    )


def link_of(options: argparse.Namespace) -> LinkRates:
    """What add_link_arguments read."""
    if options.domain and options.network_gbs == 0:
        raise UsageError("argument --network-gbs: must be above 0 where there are domains")
    return LinkRates(
        gbs=options.link_gbs,
        latency_us=options.link_latency_us,
        domain=options.domain,
        network_gbs=options.network_gbs,
        network_latency_us=options.network_latency_us,
    )
