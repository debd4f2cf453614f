"""Examine an environment before anything trains in it: take facts and return findings.

Each rule abstains where a fact that it needs is unknown. A healthy host gets no finding above
``info``.
"""

from __future__ import annotations

from ..text.units import count_text
from . import (
    environment_allocator,
    environment_build,
    environment_devices,
    environment_host,
    environment_settings,
    environment_topology,
)
from .environment_facts import Facts
from .finding import Abstained, Finding, Report

_RULES = (
    environment_build.judge,
    environment_devices.judge,
    environment_topology.judge,
    environment_allocator.judge,
    environment_host.judge,
    environment_settings.judge,
)


def examine(facts: Facts) -> Report:
    """Returns the findings on ``facts``, what could not be decided, and what was looked at."""
    findings: list[Finding] = []
    abstained: list[Abstained] = []
    for rule in _RULES:
        for one in rule(facts):
            if isinstance(one, Finding):
                findings.append(one)
            else:
                abstained.append(one)
    problems = []
    if facts.torch_asked and facts.torch is None:
        problems.append(
            f"torch was asked and gave no answer: {facts.why.get('torch', 'no reason is known')}."
        )
    if (
        facts.devices is None
        and facts.driver_code == "not_initialised"
        and (facts.host.nvidia_nodes or facts.host.nvidia_pci)
    ):
        problems.append(
            "The GPUs of this machine cannot be asked: "
            f"{facts.why.get('devices', 'no reason is known')}."
        )
    return Report(
        findings=tuple(findings),
        abstained=tuple(abstained),
        problems=tuple(problems),
        examined=_examined(facts),
    )


def _examined(facts: Facts) -> tuple[str, ...]:
    """Returns what this machine has of GPUs and of torch, or why it has none."""
    found = []
    if not facts.devices:
        found.append(f"no GPU: {facts.why.get('devices', 'the driver lists none')}")
    else:
        found.append(count_text(len(facts.devices), "GPU"))
    if facts.driver_version:
        found.append(f"driver {facts.driver_version}")
    if facts.build is not None:
        found.append(f"torch {facts.build.version} in {facts.build.prefix}")
    else:
        found.append(facts.why.get("build", "no torch"))
    return (*found, "environment variables, limits, installed packages")
