"""Describe this trainer: its rank, job, script and versions.

From torch.distributed where initialised, else the environment.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any, Dict, Mapping, Optional, Tuple

from ..wire.frames import TrainerDef

ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING",
    "CUDA_DEVICE_MAX_CONNECTIONS", "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES",
    "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_SOCKET_IFNAME", "NCCL_ALGO", "NCCL_PROTO",
    "NCCL_NVLS_ENABLE", "NCCL_BUFFSIZE", "NCCL_CUMEM_ENABLE", "TORCH_NCCL_BLOCKING_WAIT",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS", "TORCH_DISTRIBUTED_DEBUG",
    "TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_CACHE_DIR", "RANK", "LOCAL_RANK",
    "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID", "SLURM_STEP_ID",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE",
)  # fmt: skip
"""Allow-list of what ever leaves the process: the whole environment holds tokens and keys."""
_RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
_LOCAL = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_WORLD = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
_MAX_LEVELS = 32
"""The most levels of cgroups that are read."""


def environment() -> Dict[str, str]:
    """Return the variables of the allow-list that are set, each value cut to 1024 characters."""
    return {name: os.environ[name][:1024] for name in ENVIRONMENT if name in os.environ}


def describe(start: int, origin: str) -> TrainerDef:
    """Return the trainer's definition, as far as it is known without a CUDA or collective call."""
    torch: Any = sys.modules.get("torch")
    rank, local_rank, world_size = place(os.environ, _distributed())
    return TrainerDef(
        pid=os.getpid(),
        start=start or None,
        rank=rank,
        local_rank=local_rank,
        world_size=world_size,
        job=job_key(os.environ, world_size),
        script=str(sys.argv[0])[:1024] if getattr(sys, "argv", None) else None,
        torch_version=_text(getattr(torch, "__version__", None)),
        python_version=".".join(map(str, sys.version_info[:3])),
        origin=origin,
        allocator_settings=_settings(os.environ),
        pod=pod(os.environ),
        cores=cores(),
    )


def cores() -> Optional[float]:
    """Return the number of cores that this process may use.

    They are those of its affinity, or fewer where the CPU quota of its cgroup (v2) or of one above
    it allows less. None where the system does not tell.
    """
    try:
        allowed = float(len(os.sched_getaffinity(0)))
    except (AttributeError, OSError):
        return None
    return min(allowed, _quota())


@lru_cache(maxsize=1)
def _quota(root: str = "/") -> float:
    """Return the smallest CPU quota of this process's cgroups, in cores; infinite without a quota.

    Read once.
    """
    least = float("inf")
    try:
        with open(os.path.join(root, "proc/self/cgroup")) as text:
            group = text.read().partition("0::")[2].partition("\n")[0].strip("/")
    except OSError:
        return least
    mount = os.path.join(root, "sys/fs/cgroup")
    for _ in range(_MAX_LEVELS):
        try:
            with open(os.path.join(mount, group, "cpu.max")) as text:
                quota, period = text.read().split()[:2]
            least = min(least, int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            # "max": no quota; the root has no such file
            pass
        if not group:
            break
        group = os.path.dirname(group)
    return least


def place(
    env: Mapping[str, str], distributed: Optional[Tuple[int, int]] = None
) -> Tuple[Optional[int], Optional[int], Optional[int]]:
    """Return rank, local rank and world size.

    ``distributed`` is what torch.distributed says, and wins over the environment.

    The three variables are taken from the first launcher that set its world size, so that a
    torchrun inside one Slurm task is not mixed with the task's own rank.
    """
    for rank_name, local_name, world_name in zip(_RANK, _LOCAL, _WORLD):
        world = _count(env.get(world_name))
        rank = _count(env.get(rank_name))
        if world is not None and rank is not None:
            local = _count(env.get(local_name))
            if distributed is None:
                return (
                    (rank, local, world)
                    if world > 1 or world_name == "WORLD_SIZE"
                    else (None, None, None)
                )
            return distributed[0], local, distributed[1]
    return (
        (distributed[0], _count(env.get("LOCAL_RANK")), distributed[1])
        if distributed
        else (None, None, None)
    )


def job_key(env: Mapping[str, str], world_size: Optional[int]) -> Optional[str]:
    """Return a key that joins the ranks of one job and survives an elastic restart.

    None for a trainer by itself.
    """
    address, port = env.get("MASTER_ADDR"), env.get("MASTER_PORT")
    meeting = f"{address[:256]}:{port[:8]}" if address and port else None
    run = env.get("TORCHELASTIC_RUN_ID", "")
    if run not in ("", "none", "default"):
        return f"{run[:256]}@{meeting}" if meeting else run[:256]
    if not world_size or world_size < 2:
        return None
    job, step = env.get("SLURM_JOB_ID"), env.get("SLURM_STEP_ID")
    if job and step:
        return f"slurm:{job[:64]}.{step[:64]}"
    return meeting


def pod(env: Mapping[str, str]) -> Optional[str]:
    """Return the name of the Kubernetes pod.

    It is $POD_NAME where the manifest sets it, else the host name, which is the pod's unless
    hostNetwork or a hostname of its own was asked for. None outside of Kubernetes.
    """
    if not env.get("KUBERNETES_SERVICE_HOST"):
        return None
    return (env.get("POD_NAME") or env.get("HOSTNAME") or "")[:253] or None


def _distributed() -> Optional[Tuple[int, int]]:
    """Return rank and world size once torch.distributed is initialised.

    Both are local look-ups, no communication.
    """
    dist: Any = sys.modules.get("torch.distributed")
    try:
        if dist is not None and dist.is_available() and dist.is_initialized():
            return int(dist.get_rank()), int(dist.get_world_size())
    except Exception:
        pass  # half imported, or being torn down
    return None


def _settings(env: Mapping[str, str]) -> Optional[str]:
    """Return the settings that the allocator got at its start.

    "" where there are none, so that it differs from a probe that does not say. What the program
    changes later is not in it.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    return next((env[name][:256] for name in names if env.get(name)), "")


def _count(text: Optional[str]) -> Optional[int]:
    return int(text) if text is not None and text.isdigit() and len(text) < 10 else None


def _text(value: Any) -> Optional[str]:
    return None if value is None else str(value)[:128]
