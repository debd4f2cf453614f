"""Find out whether this process runs in a container, and whether other processes are hidden.

These are separate questions. NVML lists pids of the host. A process inside a pid namespace of its
own cannot see or name those processes, whatever created the namespace. Apptainer, Enroot and
``docker --pid=host`` are containers that share the host's pids.
"""

from __future__ import annotations

import os
from typing import Mapping, Optional

from ..process.procfs import read
from ..wire.frames import HIDDEN_BY_CONTAINER, Unknown

_IN_CGROUP = (
    (b"kubepods", "kubernetes"),
    (b"/libpod", "podman"),
    (b"/docker", "docker"),
    (b"/lxc", "lxc"),
    (b"/containerd", "containerd"),
    (b"/crio", "cri-o"),
)
_IN_ENVIRONMENT = (
    ("KUBERNETES_SERVICE_HOST", "kubernetes"),
    ("APPTAINER_CONTAINER", "apptainer"),
    ("SINGULARITY_CONTAINER", "singularity"),
    ("ENROOT_ROOTFS", "enroot"),
)
_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The inode of the host's first pid namespace (PROC_PID_INIT_INO), the same since Linux 3.8."""


def container(root: str = "/", environment: Optional[Mapping[str, str]] = None) -> Optional[str]:
    """Return what contains this process (docker, podman, lxc, …), None on a plain host."""
    environment = os.environ if environment is None else environment
    for variable, name in _IN_ENVIRONMENT:
        if environment.get(variable):
            return name
    if os.path.exists(os.path.join(root, "run/.containerenv")):
        return "podman"
    cgroup = _content(root, "proc/self/cgroup") + _content(root, "proc/1/cgroup")
    for pattern, name in _IN_CGROUP:
        if pattern in cgroup:
            return name
    if os.path.exists(os.path.join(root, ".dockerenv")):
        return "docker"
    # systemd writes this file for any container manager. "wsl" counts as a host of its own.
    named = _content(root, "run/systemd/container").strip().decode("ascii", "replace")[:40]
    return named if named and named != "wsl" else None


def own_pid_namespace(root: str = "/") -> bool:
    """Say whether this process is in another pid namespace than the host's first one.

    The driver's pids have no meaning there.
    """
    try:
        return os.readlink(os.path.join(root, "proc/self/ns/pid")) != _FIRST_PID_NAMESPACE
    except OSError:
        return False


def pid_namespace_note(root: str = "/") -> Optional[Unknown]:
    """Say why owners of GPU memory cannot be named here, None if they can."""
    if not own_pid_namespace(root):
        return None
    return Unknown(
        HIDDEN_BY_CONTAINER,
        "the driver lists processes by the host's pids, which this container cannot see; start it "
        "with --pid=host (Kubernetes: hostPID: true) to see them",
    )


def _content(root: str, path: str) -> bytes:
    try:
        return read(os.path.join(root, path))
    except OSError:
        return b""
