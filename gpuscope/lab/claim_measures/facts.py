"""What this machine has, as one JSON object: asked once before anything is measured."""

from __future__ import annotations

import os
import platform
import shutil
from typing import Any

import torch

from ..machine import cpu_name
from .bench import sender, take_stdout


def facts() -> dict[str, Any]:
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = []
    for index in range(gpus):
        free, total = torch.cuda.mem_get_info(index)
        devices.append({"name": torch.cuda.get_device_name(index), "free_bytes": free, "total_bytes": total})
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    return {
        "torch_version": str(torch.__version__),
        "cuda_version": torch.version.cuda,
        "python_version": platform.python_version(),
        "gpus": devices,
        "cpu": cpu_name(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "compiler": shutil.which(os.environ.get("CXX", "g++")) is not None or shutil.which("clang++") is not None,
    }


if __name__ == "__main__":
    stream = take_stdout()
    sender(stream)(facts())
