"""Find what a process belongs to, and which of its environment variables may be shown.

It may belong to a container, a pod or a Slurm job. Everybody can read the control group of a
process; only its user and root can read its environment.
"""

from __future__ import annotations

import os
import re
from typing import Dict, NamedTuple, Optional, Tuple, Union

from ..process.procfs import read, why_process, words_of
from ..wire.frames import LOST, Unknown

MAX_VARIABLES = 64
MAX_VARIABLE_CHARS = 512
ENVIRONMENT_BYTES = 1 << 20

_CONTAINER = re.compile(
    r"(?:^|[/:_-])(docker|libpod|cri-containerd|crio|containerd|lxc\.payload|lxc|machine)[-./:]"
    r"([0-9A-Za-z][0-9A-Za-z_.-]{0,79}?)(?:\.scope)?(?:/|$)"
)
_LONG_NAME = re.compile(r"/([0-9a-f]{64})(?:\.scope)?(?:/|$)")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_JOB = re.compile(r"/job_([0-9]{1,12})(?:/|$)")
_KINDS = {"libpod": "podman", "cri-containerd": "containerd", "crio": "cri-o", "lxc.payload": "lxc"}
SHOWN = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "NVIDIA_VISIBLE_DEVICES", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV",
    "HOSTNAME",
)  # fmt: skip
PREFIXES = (
    "NCCL_",
    "TORCH_NCCL_",
    "PYTORCH_",
    "TORCHELASTIC_",
    "SLURM_JOB",
    "SLURM_STEP",
    "SLURM_PROCID",
    "CUBLAS_",
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|AUTH|COOKIE", re.I)


class Belonging(NamedTuple):
    """Where a process belongs. A field is None if it belongs to none, or that is unknown."""

    container: Optional[str] = None
    pod: Optional[str] = None
    slurm_job: Optional[str] = None


def owners_of(pid: int, root: str = "/") -> Belonging:
    """Return the container, pod or job that started a process, by /proc/PID/cgroup.

    It looks like ``docker 3f2a…``, a pod's uid or the number of a Slurm job.
    """
    try:
        text = read(os.path.join(root, "proc", str(pid), "cgroup")).decode("utf-8", "replace")
    except OSError:
        return Belonging()
    container = pod = job = None
    for line in text.splitlines():
        path = line.split(":", 2)[-1]
        pod = pod or _first(_POD, path)
        job = job or _first(_JOB, path) if "slurm" in path else job
        container = container or _container(path)
    return Belonging(container, pod.replace("_", "-") if pod else None, job)


def _container(path: str) -> Optional[str]:
    # The innermost one counts, because a container may run inside another.
    found = [match for match in _CONTAINER.finditer(path) if match[2] not in ("service", "slice")]
    if found:
        return f"{_KINDS.get(found[-1][1], found[-1][1])} {found[-1][2][:12]}"
    name = _first(_LONG_NAME, path)
    return f"container {name[:12]}" if name else None


def _first(pattern: re.Pattern[str], text: str) -> Optional[str]:
    match = pattern.search(text)
    return match[1] if match else None


def may_be_shown(name: str) -> bool:
    """Whether a variable is on the allow-list."""
    return (name in SHOWN or name.startswith(PREFIXES)) and not _SECRET.search(name)


def environment_of(pid: int, root: str = "/") -> Union[Tuple[Dict[str, str], int], Unknown]:
    """Return the allow-listed variables that a process was started with, and the number of others.

    Variables that it set later are not included. If they cannot be read, the reason is returned.
    """
    try:
        lines = words_of(pid, "environ", root, ENVIRONMENT_BYTES)
    except PermissionError:
        return Unknown(
            "no_permission", f"the environment of pid {pid} can be read only by its user and root"
        )
    except ProcessLookupError:
        return Unknown(LOST, f"process {pid} is gone")
    except OSError as error:
        return why_process(error, pid, "environ")
    found: Dict[str, str] = {}
    others = 0
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator:
            continue
        if len(found) < MAX_VARIABLES and may_be_shown(name):
            found[name[:MAX_VARIABLE_CHARS]] = value[:MAX_VARIABLE_CHARS]
        else:
            others += 1
    return dict(sorted(found.items())), others
