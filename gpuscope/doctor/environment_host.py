"""Judges the host around the GPUs.

The rules examine its memory, /dev/shm, resource limits, the container, and the Python packages that
read NVML.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..text.units import GIB, bytes_text
from .environment_facts import WORDINGS, Facts, version
from .finding import Abstained, Evidence, Finding

SMALL_SHM_BYTES = 256 << 20
"""A /dev/shm of at most this size is reported as too small.

Docker and Podman provide 64 MiB by default, which one batch of images in a loader's worker can
fill.
"""


def judge(facts: Facts) -> Iterator[Finding | Abstained]:
    """Yields findings, and what could not be decided."""
    yield from _shm(facts)
    yield from _cgroup(facts)
    yield from _memory(facts)
    yield from _limits(facts)
    yield from _packages(facts)
    if facts.devices and (facts.host.pids_hidden is not None or facts.host.own_pid_namespace):
        why = facts.host.pids_hidden or "this runs in a pid namespace of its own"
        yield WORDINGS.finding(
            "environment.pid-namespace", evidence=(Evidence(why, "/proc/self/ns/pid"),)
        )


# ── shared memory ─────────────────────────────────────────────────────────────────────────────────


def _shm(facts: Facts) -> Iterator[Finding | Abstained]:
    total, used = facts.host.shm_total_bytes, facts.host.shm_used_bytes
    if total is None:
        yield WORDINGS.abstained("shm", why=facts.why.get("shm_total_bytes"))
        return
    inside = facts.host.container is not None
    if total <= SMALL_SHM_BYTES:
        yield WORDINGS.finding(
            "environment.shm.small.container" if inside else "environment.shm.small",
            {"total": bytes_text(total)},
            evidence=(
                Evidence(
                    f"/dev/shm: {bytes_text(total)} in all, {bytes_text(used or 0)} used",
                    "/dev/shm",
                ),
            )
            if used is not None
            else (Evidence(f"/dev/shm: {bytes_text(total)} in all", "/dev/shm"),),
        )
    elif used is not None and used > 0.9 * total:
        yield WORDINGS.finding(
            "environment.shm.full.container" if inside else "environment.shm.full",
            {"free": bytes_text(total - used), "total": bytes_text(total)},
            evidence=(
                Evidence(f"/dev/shm: {bytes_text(used)} of {bytes_text(total)} used", "/dev/shm"),
            ),
        )


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def _cgroup(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    limit, used, kills = host.cgroup_limit_bytes, host.cgroup_used_bytes, host.oom_kills
    near = limit is not None and used is not None and limit > 0 and used > 0.9 * limit
    if not near and not kills:
        return
    evidence = []
    if limit is not None and used is not None:
        evidence.append(
            Evidence(
                f"{bytes_text(used)} of {bytes_text(limit)} used, without file cache", "cgroup"
            )
        )
    if kills:
        evidence.append(Evidence(f"oom_kill {kills}", host.oom_kills_source or "memory.events"))
    figures = {
        "left": bytes_text(max(0, limit - used))
        if limit is not None and used is not None
        else None,
        "limit": bytes_text(limit) if limit is not None else None,
        "times": "once" if kills == 1 else f"{kills} times",
    }
    yield WORDINGS.finding(
        "environment.host-memory.limit" if near else "environment.host-memory.killed",
        figures,
        evidence=tuple(evidence),
        where="cgroup",
        rank=1.0,
    )


def _memory(facts: Facts) -> Iterator[Finding | Abstained]:
    host = facts.host
    total, free = host.memory_total_bytes, host.memory_available_bytes
    if total is None or free is None:
        yield WORDINGS.abstained("memory", why=facts.why.get("memory_available_bytes"))
        return
    memory = Evidence(f"{bytes_text(free)} of {bytes_text(total)} available", "/proc/meminfo")
    swapped = host.swap_used_bytes or 0
    swap = Evidence(
        f"{bytes_text(swapped)} of {bytes_text(host.swap_total_bytes or 0)} swap used",
        "/proc/meminfo",
    )
    stall = host.memory_stall_percent
    stalls = (
        (
            Evidence(
                f"all tasks waited for memory {stall:.0f} % of the last minute",
                "/proc/pressure/memory",
            ),
        )
        if stall is not None and stall >= 1
        else ()
    )
    figures = {"free": bytes_text(free), "total": bytes_text(total), "swapped": bytes_text(swapped)}
    if free < 0.05 * total:
        yield WORDINGS.finding(
            "environment.host-memory.short",
            figures,
            evidence=(memory, *((swap,) if swapped else ()), *stalls),
            where="host",
        )
    elif stall is not None and stall >= 10:
        yield WORDINGS.finding(
            "environment.host-memory.stalls",
            {"stall": f"{stall:.0f}"},
            evidence=(*stalls, memory, swap),
            where="host",
        )
    # Where memory is free and nothing waits for it, the swapped-out pages are old and not in use.
    elif swapped > GIB and free < 0.1 * total and (stall is None or stall >= 1):
        yield WORDINGS.finding(
            "environment.host-memory.swaps", figures, evidence=(swap, memory, *stalls), where="host"
        )


# ── limits ────────────────────────────────────────────────────────────────────────────────────────


def _limits(facts: Facts) -> Iterator[Finding]:
    host = facts.host
    files, hard = host.open_files, host.open_files_hard
    many = (host.cpu_count or 0) >= 16 and bool(facts.devices)
    if files is not None and files >= 0 and (files < 1024 or (files == 1024 and many)):
        more = hard if hard is not None and hard > files else 65536
        yield WORDINGS.finding(
            "environment.ulimit.files",
            {"files": files, "more": more if more > 0 else 65536},
            severity="warning" if files < 1024 else "info",
            evidence=(
                Evidence(f"open files: soft limit {files}, hard {_limit_text(hard)}", "ulimit -n"),
            ),
            where="open files",
        )
    if host.processes is not None and 0 <= host.processes < 1024:
        yield WORDINGS.finding(
            "environment.ulimit.processes",
            {"limit": host.processes},
            evidence=(Evidence(f"processes: soft limit {host.processes}", "ulimit -u"),),
            where="processes",
        )
    if host.pids_limit and host.pids_used is not None and host.pids_used > 0.9 * host.pids_limit:
        yield WORDINGS.finding(
            "environment.ulimit.pids",
            {"used": host.pids_used, "limit": host.pids_limit},
            evidence=(Evidence(f"pids: {host.pids_used} of {host.pids_limit}", "cgroup"),),
            where="cgroup pids",
        )
    locked = host.locked_bytes
    if (
        host.infiniband
        and not host.root
        and locked is not None
        and 0 <= locked < GIB
        and len(facts.devices or ()) > 1
    ):
        several = facts.environment.get("SLURM_NNODES", "1") not in ("", "1")
        yield WORDINGS.finding(
            "environment.ulimit.locked",
            {"locked": bytes_text(locked)},
            severity="warning" if several else "info",
            evidence=(
                Evidence(f"locked memory: soft limit {bytes_text(locked)}", "ulimit -l"),
                Evidence(
                    f"InfiniBand or RoCE here: {', '.join(host.infiniband[:8])}",
                    "/sys/class/infiniband",
                ),
            ),
            where="locked memory",
        )


def _limit_text(limit: int | None) -> str:
    """Returns a limit as ``ulimit`` writes it."""
    return "unknown" if limit is None else "unlimited" if limit < 0 else str(limit)


# ── packages ──────────────────────────────────────────────────────────────────────────────────────


def _packages(facts: Facts) -> Iterator[Finding]:
    for where, packages in (
        ("", facts.own_packages),
        ("the trainer's environment", facts.packages),
    ):
        old, new = packages.get("pynvml"), packages.get("nvidia-ml-py")
        both = old is not None and new is not None and () < version(old) < (12,)
        if not both and not (facts.nvml_note and not where):
            continue
        evidence = []
        if old is not None:
            evidence.append(
                Evidence(
                    f"pynvml {old} brings a module of its own named pynvml", "installed metadata"
                )
            )
        if new is not None:
            evidence.append(
                Evidence(
                    f"nvidia-ml-py {new} brings another of the same name", "installed metadata"
                )
            )
        if facts.nvml_note and not where:
            evidence.append(Evidence(facts.nvml_note, "nvml"))
        yield WORDINGS.finding("environment.pynvml", evidence=tuple(evidence), where=where)
        return
