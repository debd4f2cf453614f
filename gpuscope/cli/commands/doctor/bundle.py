"""``gpuscope doctor --bundle FILE``: a zip for somebody who helps, without paths, users and hosts.

The zip contains the report, versions, and the settings that affect a training. Free text goes
through the redactor of recordings. Of variables and packages only those named in this module are
included.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import sys
import zipfile
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from .... import __version__
from ....doctor.redaction import DocumentRedactor
from ....wire.clean import clean

MAX_PART_BYTES = 2 << 20
"""The largest size of a file in the bundle, unpacked; a longer report loses its last findings."""
MAX_VALUE = 200
_VARIABLES = re.compile(
    r"(PYTORCH|TORCH|TORCHELASTIC|TORCHINDUCTOR|NCCL|CUDA|CUBLAS|CUDNN)_[A-Z0-9_]+|(OMP|MKL|OPENBLAS)_NUM_THREADS"
    r"|(LOCAL_)?(RANK|WORLD_SIZE)|TOKENIZERS_PARALLELISM"
)
_PACKAGES = re.compile(
    r"torch|torch(vision|audio|ao|tune)|pytorch[-_](triton|lightning)|lightning|triton|nvidia[-_].*|numpy|transformers"
    r"|accelerate|deepspeed|peft|bitsandbytes|flash[-_]attn|xformers|vllm|diffusers|timm|pynvml|cuda[-_].*|gpuscope",
    re.I,
)
_README = """A support bundle of gpuscope doctor. Check it before you send it.

report.json       findings, what could not be decided or checked
environment.json  versions of programs and packages, memory, settings of torch, CUDA and NCCL

Left out on purpose: paths, file names, users, hosts, addresses, identities of GPUs, every other variable and package.
"""  # noqa: E501


def write(path: str, document: Mapping[str, Any]) -> int:
    """Write the bundle to a new file and return its size in bytes.

    Raises :class:`OSError`, also where a file of that name exists already.
    """
    redact = DocumentRedactor()
    parts = {
        "README.txt": _README,
        "report.json": _report(document, redact),
        "environment.json": json.dumps(redact.everything(_environment()), indent=1),
    }
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), text, zipfile.ZIP_DEFLATED
            )
    with open(path, "xb") as file:
        file.write(packed.getvalue())
    return len(packed.getvalue())


def _report(document: Mapping[str, Any], redact: DocumentRedactor) -> str:
    for job in document.get("jobs", ()):
        redact.hide_hosts_of(job)
    found = redact.everything(document)
    count = len(found["findings"])
    text = json.dumps(found, indent=1)
    while len(text) > MAX_PART_BYTES and found["findings"]:
        found["findings"] = found["findings"][: len(found["findings"]) // 2]
        found["findings_left_out"] = count - len(found["findings"])
        text = json.dumps(found, indent=1)
    return text


def _environment() -> dict[str, Any]:
    """Versions and settings; null is unknown."""
    return {
        "gpuscope": __version__,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "driver": _first_line("/proc/driver/nvidia/version"),
        "cores": os.cpu_count(),
        "memory_bytes": _pages(),
        "shared_memory_bytes": _shared(),
        "packages": _installed(),
        "variables": {
            name: clean(value, MAX_VALUE)
            for name, value in sorted(os.environ.items())
            if _VARIABLES.fullmatch(name)
        },
    }


def _first_line(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return clean(file.readline(MAX_VALUE).strip(), MAX_VALUE)
    except OSError:
        return None


def _pages() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return None


def _shared() -> int | None:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_frsize * found.f_blocks


def _installed() -> dict[str, str]:
    found: dict[str, str] = {}
    for one in metadata.distributions():
        name = one.metadata["Name"]
        if name and _PACKAGES.fullmatch(name):
            found[clean(name, MAX_VALUE)] = clean(one.version, MAX_VALUE)
    return dict(sorted(found.items()))
