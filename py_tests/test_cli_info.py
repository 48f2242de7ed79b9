"""tileoverlap info: a report for bug reports, on any machine."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tileoverlap as to
from tileoverlap import cli


def test_the_report_has_versions_devices_and_settings(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TILEOVERLAP_TIMEOUT_S", "12.5")
    assert cli.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["tileoverlap"] == to.__version__
    assert report["environment"]["TILEOVERLAP_TIMEOUT_S"] == "12.5"
    assert report["cpu"]["cores"] >= 1
    assert {"compiler", "dlpack", "nanobind", "cuda", "nvshmem"} <= set(report["build"])
    assert isinstance(report["cuda"]["devices"], list)
    assert len(report["gpus"]["devices"]) == len(to.cuda_devices())
    assert report["gpus"]["why_none"] == (to.why_no_cuda_device() or None)


def test_gpus_are_listed_with_their_tiles(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    device = to.CudaDevice(0, "Some GPU", (9, 0), 132, 139 << 30, ((64, 256), (128, 128)))
    monkeypatch.setattr(cli.info, "cuda_devices", lambda: [device])
    monkeypatch.setattr(cli.info, "why_no_cuda_device", lambda: "")
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    assert "Some GPU, 9.0, 132 SMs, 139.0 GiB, tiles 64 x 256, 128 x 128" in text
    assert "none:" not in text


def test_the_text_names_no_path_and_no_user(capsys: pytest.CaptureFixture):
    assert cli.main(["info"]) == 0
    text = capsys.readouterr().out
    for word in (
        "tileoverlap",
        "python",
        "cuda driver",
        "nvshmem",
        "torch",
        "TILEOVERLAP_TIMEOUT_S",
    ):
        assert word in text
    assert str(Path.home()) not in text
    assert os.getcwd() not in text
