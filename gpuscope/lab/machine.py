"""Set torch's global switches, and ask torch about the machine.

:func:`prepare` needs no torch and must run before it is imported: the allocator and cuBLAS read the
environment once, when CUDA starts. Everything else here imports torch where it is used.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import warnings
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from ..process import procfs
from .config import LabConfig
from .device_selection import cores
from .rules import RunFacts

if TYPE_CHECKING:
    import torch

    from .parallel import World

MEMORY_VARIABLE = "GPUSCOPE_LAB_MEMORY"
"""The variable with the most bytes that a process of a worker may reserve on its CUDA device."""
CUBLAS_DETERMINISTIC = ":4096:8"
"""One of the two workspace settings with which cuBLAS gives the same bits every time, the faster
one (CUDA's documentation of cuBLAS).
"""


def prepare(config: LabConfig, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment that torch reads when it is imported and when CUDA starts."""
    old, new = (
        "PYTORCH_CUDA_ALLOC_CONF",
        "PYTORCH_ALLOC_CONF",
    )  # the second since torch 2.9, which then warns of the first
    options = [
        word
        for name in (old, new)
        for word in environ.get(name, "").split(",")
        if word.strip() and not word.strip().startswith("expandable_segments")
    ]
    given = any(name in environ for name in (old, new))
    if config.expandable_segments or given:
        options.append(f"expandable_segments:{config.expandable_segments}")
        environ.pop(old, None)
        environ.pop(new, None)
        environ[new if _torch_version() >= (2, 9) else old] = ",".join(dict.fromkeys(options))
    if config.deterministic and environ.get("CUBLAS_WORKSPACE_CONFIG") not in (":4096:8", ":16:8"):
        environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_DETERMINISTIC


def _torch_version() -> tuple[int, int]:
    """Return the version of the installed torch without importing it, (0, 0) if unknown."""
    try:
        found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("torch"))
    except importlib.metadata.PackageNotFoundError:
        return (0, 0)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def limit_memory(device: torch.device) -> None:
    """Let torch reserve at most the bytes of ``MEMORY_VARIABLE`` on a CUDA device, if it is set.

    What needs more raises out of memory, although the device has more.
    """
    import torch

    limit = os.environ.get(MEMORY_VARIABLE, "")
    if limit.isdigit() and device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, int(limit) / total), device)


def apply(config: LabConfig) -> None:
    """Set torch's global switches for ``config``. A toggle that is off turns its switch off."""
    import torch

    torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
    with warnings.catch_warnings():
        # The old name on purpose: torch raises where the newer ``fp32_precision`` of one backend
        # meets the call above.
        warnings.simplefilter("ignore")
        torch.backends.cudnn.allow_tf32 = config.tf32
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    torch.backends.cudnn.deterministic = config.deterministic
    if config.deterministic != torch.are_deterministic_algorithms_enabled():
        # imports inductor, which takes seconds
        torch.use_deterministic_algorithms(config.deterministic)


def facts(config: LabConfig, world: World, takes_checkpoint: bool | None = None) -> RunFacts:
    """Return what this process knows about its machine."""
    import torch

    cuda = world.device.type == "cuda"
    return RunFacts(
        device_type=world.device.type,
        gpus=torch.cuda.device_count(),
        gpu_name=torch.cuda.get_device_name(world.device) if cuda else None,
        capability=torch.cuda.get_device_capability(world.device) if cuda else None,
        free_bytes=_free_bytes(world),
        torch_version=str(torch.__version__),
        cores=cores(),
        has_compiler=_has_compiler(cuda) if config.compile != "off" else None,
        torch_folder=os.path.dirname(torch.__file__),
        factory_takes_checkpoint=takes_checkpoint,
        processes=world.local_size if world.backend else None,
        world_size=world.size if world.backend else None,
    )


def _free_bytes(world: World) -> list[int] | None:
    """Return the free memory of this process's own GPU, on a CPU the machine's available memory.

    Asking the other GPUs would start CUDA on them.
    """
    import torch

    if world.device.type == "cuda":
        return [torch.cuda.mem_get_info(world.device)[0]]
    return available_bytes()


def available_bytes() -> list[int] | None:
    """Return the host's available memory in bytes, as a list of one.

    None if /proc does not tell.
    """
    known = procfs.available_bytes()
    return None if known is None else [known]


def _has_compiler(cuda: bool) -> bool:
    if cuda:
        import importlib.util

        c = (
            os.environ.get("CC")
            or shutil.which("cc")
            or shutil.which("gcc")
            or shutil.which("clang")
        )
        return importlib.util.find_spec("triton") is not None and bool(c)
    named = os.environ.get("CXX")
    return any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"]))


def device_name(device: torch.device) -> str:
    """Return the model name of a GPU, or of the CPU."""
    import torch

    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else cpu_name()


def devices(config: LabConfig, world: World) -> list[dict[str, Any]]:
    """Return the devices that this process trains on.

    ``uuid`` is as the driver writes it, None if torch does not report it.
    """
    import torch

    if world.device.type != "cuda":
        return [{"rank": world.rank, "device": "cpu", "name": cpu_name(), "uuid": None}]
    indices = [world.device.index or 0]
    if config.parallel == "dp":
        indices = list(
            range(min(config.nproc or torch.cuda.device_count(), torch.cuda.device_count()))
        )
    found = []
    for index in indices:
        uuid = getattr(torch.cuda.get_device_properties(index), "uuid", None)
        text = None if uuid is None else str(uuid)
        if text is not None and not text.startswith(("GPU-", "MIG-")):
            text = f"GPU-{text}"
        found.append(
            {
                "rank": world.rank,
                "device": f"cuda:{index}",
                "name": torch.cuda.get_device_name(index),
                "uuid": text,
            }
        )
    return found


def cpu_name() -> str:
    """Return the CPU's name from the kernel, or its architecture if there is none."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            name = next(
                (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
                "",
            )
    except OSError:
        name = ""
    return name or platform.machine() or "CPU"
