"""Judges environment variables that change how a training runs.

These are variables of NCCL and OpenMP, and variables that were set for debugging and not removed.
Sources: NCCL's list of environment variables, PyTorch's notes on CUDA and its documentation of
``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterator

from .environment_facts import WORDINGS, Facts
from .finding import Evidence, Finding, Severity

_FOR_SEARCHING = {
    "CUDA_LAUNCH_BLOCKING": "environment.debug.launches",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "environment.debug.allocations",
}
"""Variables that are meant for debugging and slow every training down, and the finding on each."""
_RENAMED = {
    "NCCL_ASYNC_ERROR_HANDLING": "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT": "TORCH_NCCL_BLOCKING_WAIT",
    "NCCL_DESYNC_DEBUG": "TORCH_NCCL_DESYNC_DEBUG",
    "NCCL_ENABLE_TIMING": "TORCH_NCCL_ENABLE_TIMING",
}
"""Variables that torch and not NCCL reads, and the names that replaced them in torch 2.2."""
_SLOWER = {
    "NCCL_P2P_DISABLE": "environment.nccl.p2p",
    "NCCL_SHM_DISABLE": "environment.nccl.shm",
    "NCCL_IB_DISABLE": "environment.nccl.infiniband",
}
"""Variables that keep NCCL from using a fast path, and the finding on each."""
_YES = ("1", "true", "yes", "on")


def judge(facts: Facts) -> Iterator[Finding]:
    """Yields what the environment sets that costs time or does nothing."""
    for variable, finding in _FOR_SEARCHING.items():
        if facts.environment.get(variable, "") not in ("", "0"):
            yield _finding(facts, finding, variable, "warning")
    yield from _nccl(facts)
    yield from _threads(facts)


def _nccl(facts: Facts) -> Iterator[Finding]:
    environment = facts.environment
    several = len(facts.devices or ()) > 1
    for variable, finding in _SLOWER.items():
        if environment.get(variable, "").lower() in _YES and several:
            yield _finding(facts, finding, variable)
    for variable in _RENAMED:
        if variable in environment:
            yield _finding(facts, "environment.nccl.renamed", variable)
    if "NCCL_TIMEOUT" in environment:
        yield _finding(facts, "environment.nccl.timeout", "NCCL_TIMEOUT")
    if environment.get("NCCL_DEBUG", "").upper() == "TRACE":
        yield _finding(facts, "environment.nccl.trace", "NCCL_DEBUG")
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        yield from _interface(facts, variable)


def _interface(facts: Facts, variable: str) -> Iterator[Finding]:
    """Yields a finding where the variable names no network interface of this host.

    NCCL matches prefixes of interface names. A leading "=" asks for exact names, a leading "^"
    excludes names.
    """
    text, here = facts.environment.get(variable, ""), facts.host.interfaces
    if not text.strip() or here is None or text.startswith("^"):
        return
    exact = text.startswith("=") or variable.startswith("GLOO")
    wanted = [word.split(":")[0].strip() for word in text.lstrip("=").split(",")]
    if any(
        one == word if exact else one.startswith(word) for one in here for word in wanted if word
    ):
        return
    interfaces = Evidence(f"interfaces here: {', '.join(here[:16])}", "/sys/class/net")
    yield _finding(facts, "environment.nccl.interface", variable, "warning", interfaces)


def _finding(
    facts: Facts, finding: str, variable: str, severity: Severity = "info", *evidence: Evidence
) -> Finding:
    """Returns the finding of this id on a variable that is set."""
    value = facts.environment[variable]
    return WORDINGS.finding(
        finding,
        {
            "name": variable,
            "value": value[:60],
            "new": _RENAMED.get(variable),
            "full_value": value[:100],
        },
        severity=severity,
        confidence="definite",
        evidence=(Evidence(f"{variable}={value[:200]}", "environment"), *evidence),
        where=variable,
    )


def _threads(facts: Facts) -> Iterator[Finding]:
    """Yields a finding where OMP_NUM_THREADS is no number or exceeds the processors."""
    text, processors = facts.environment.get("OMP_NUM_THREADS"), facts.host.cpu_count
    if text is None or not text.strip():
        return
    first = text.split(",")[0].strip()
    number = int(first) if first.isascii() and first.isdigit() and len(first) < 9 else 0
    if number >= 1 and (processors is None or number <= processors):
        return
    evidence = [Evidence(f"OMP_NUM_THREADS={text[:200]}", "environment")]
    if processors is not None:
        evidence.append(Evidence(f"{processors} processors", "/proc/stat"))
    yield WORDINGS.finding(
        "environment.threads.too-many" if number >= 1 else "environment.threads.no-number",
        {
            "value": text[:40],
            "processors": processors,
            "threads": max(1, (processors or 1) // max(1, len(facts.devices or ()))),
        },
        confidence="likely" if number >= 1 else "definite",
        evidence=tuple(evidence),
        where="OMP_NUM_THREADS",
    )
