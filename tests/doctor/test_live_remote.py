"""A short look at the trainers of another host: a child stands in for the agent there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from gpuscope.cli.commands.doctor import remote as doctor_remote
from gpuscope.cli.remote import Target
from gpuscope.store.source import AgentSource
from tests.fakes import remembering
from tests.tui.test_doctor_tab import growing


def test_growth_is_judged_at_once_by_what_the_trainer_there_remembers(tmp_path):
    argv = remembering.agent(tmp_path, growing(4), remembering.leak())
    ways = SimpleNamespace(source=lambda target, hz: AgentSource(argv, "there", "node-17"))
    report = asyncio.run(
        doctor_remote._one(ways, Target("ssh", "node-17:48201", "node-17", 48201), 2.2)
    )  # type: ignore[arg-type]
    found = next(one for one in report.findings if one.cause == "live.memory_grows")
    assert "MiB per step" in found.evidence[0].text
