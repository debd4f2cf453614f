"""Environment variables that change how a training runs: NCCL's, OpenMP's, and those that are left over from a search.

Sources: NCCL's list of environment variables, PyTorch's notes on CUDA and its documentation of ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterator

from .environment_facts import Facts
from .finding import Evidence, Finding, Fix, Severity

_RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
}
"""Read by torch, not by NCCL; since torch 2.2 by the second name, and the first is deprecated."""
_NOT_NCCL = {"NCCL_TIMEOUT": "init_process_group(timeout=timedelta(minutes=30))"}
"""Names that neither NCCL nor torch reads, and what does what they promise."""
_SLOWER = {
    "NCCL_P2P_DISABLE": "GPUs exchange data through host memory instead of directly",
    "NCCL_SHM_DISABLE": "GPUs without a direct path exchange data through sockets",
    "NCCL_IB_DISABLE": "hosts exchange data over TCP instead of InfiniBand",
}
_YES = ("1", "true", "yes", "on")


def judge(facts: Facts) -> Iterator[Finding]:
    """What the environment sets that costs time or does nothing."""
    get = facts.environment.get
    if get("CUDA_LAUNCH_BLOCKING", "") not in ("", "0"):
        yield _left_over(
            facts, "CUDA_LAUNCH_BLOCKING", "warning", "every kernel is waited for, which is for searching errors only"
        )
    if get("PYTORCH_NO_CUDA_MEMORY_CACHING", "") not in ("", "0"):
        yield _left_over(
            facts, "PYTORCH_NO_CUDA_MEMORY_CACHING", "warning",
            "every tensor is allocated by the driver itself, which is slow and for searching errors only",
        )  # fmt: skip
    yield from _nccl(facts)
    yield from _threads(facts)


def _left_over(facts: Facts, name: str, severity: Severity, what: str) -> Finding:
    return Finding(
        pitfall="debug-settings",
        cause="environment.debug",
        title=f"{name}={facts.environment[name][:40]}: {what}",
        severity=severity,
        confidence="definite",
        evidence=(Evidence(text=f"{name}={facts.environment[name][:200]}", source="environment"),),
        fixes=(Fix(title="Take it out once the error is found", command=f"unset {name}"),),
        where=name,
    )


def _nccl(facts: Facts) -> Iterator[Finding]:
    environment = facts.environment
    several = len(facts.devices or ()) > 1
    for name, what in _SLOWER.items():
        if environment.get(name, "").lower() in _YES and several:
            yield _nccl_finding(
                facts,
                name,
                "info",
                f"{name} is set: {what}",
                Fix(title="Take it out unless NCCL hangs without it", command=f"unset {name}"),
            )
    for name, new in _RENAMED.items():
        if name in environment:
            yield _nccl_finding(
                facts,
                name,
                "info",
                f"{name} has a new name since torch 2.2",
                Fix(title="Use the new name", environment=f"{new}={environment[name][:100]}"),
            )
    for name, instead in _NOT_NCCL.items():
        if name in environment:
            yield _nccl_finding(
                facts,
                name,
                "info",
                f"{name} does nothing: NCCL has no such variable",
                Fix(title="Say it in the program", code=instead),
            )
    if environment.get("NCCL_DEBUG", "").upper() == "TRACE":
        yield _nccl_finding(
            facts,
            "NCCL_DEBUG",
            "info",
            "NCCL_DEBUG=TRACE writes a line for every call",
            Fix(title="WARN says what fails", environment="NCCL_DEBUG=WARN"),
        )
    yield from _interface(facts)


def _interface(facts: Facts) -> Iterator[Finding]:
    """NCCL_SOCKET_IFNAME: prefixes, "=" before an exact name, "^" before what is left out."""
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        text, here = facts.environment.get(name, ""), facts.host.interfaces
        if not text.strip() or here is None or text.startswith("^"):
            continue
        exact = text.startswith("=") or name.startswith("GLOO")
        wanted = [word.split(":")[0].strip() for word in text.lstrip("=").split(",")]
        if any(one == word if exact else one.startswith(word) for one in here for word in wanted if word):
            continue
        yield Finding(
            pitfall="nccl-config",
            cause="environment.nccl",
            title=f"{name}={text[:60]} names no network interface of this host: ranks cannot find each other",
            severity="warning",
            confidence="definite",
            evidence=(
                Evidence(text=f"{name}={text[:200]}", source="environment"),
                Evidence(text=f"interfaces here: {', '.join(here[:16])}", source="/sys/class/net"),
            ),
            fixes=(Fix(title="Name one that is here, or let NCCL choose", command=f"unset {name}"),),
            where=name,
        )


def _nccl_finding(facts: Facts, name: str, severity: Severity, title: str, fix: Fix) -> Finding:
    return Finding(
        pitfall="nccl-config",
        cause="environment.nccl",
        title=title,
        severity=severity,
        confidence="definite",
        evidence=(Evidence(text=f"{name}={facts.environment[name][:200]}", source="environment"),),
        fixes=(fix,),
        where=name,
    )


def _threads(facts: Facts) -> Iterator[Finding]:
    text, cores = facts.environment.get("OMP_NUM_THREADS"), facts.host.cpu_count
    if text is None or not text.strip():
        return
    first = text.split(",")[0].strip()
    number = int(first) if first.isascii() and first.isdigit() and len(first) < 9 else 0
    if number >= 1 and (cores is None or number <= cores):
        return
    wrong = number < 1
    yield Finding(
        pitfall="cpu-threads",
        cause="environment.threads",
        title=f"OMP_NUM_THREADS={text[:40]} is {'no number' if wrong else f'more than the {cores} processors here'}",
        severity="warning",
        confidence="definite" if wrong else "likely",
        evidence=(
            Evidence(text=f"OMP_NUM_THREADS={text[:200]}", source="environment"),
            *((Evidence(text=f"{cores} processors", source="/proc/stat"),) if cores is not None else ()),
        ),
        fixes=(
            Fix(
                title="Processors divided by the ranks on this host",
                environment=f"OMP_NUM_THREADS={max(1, (cores or 1) // max(1, len(facts.devices or ())))}",
            ),
        ),
        where="OMP_NUM_THREADS",
    )
