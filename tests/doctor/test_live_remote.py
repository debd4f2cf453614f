"""A short look at the trainers of another host: a child stands in for the agent there."""

from __future__ import annotations

import argparse
import asyncio
from types import SimpleNamespace

from gpuscope.cli.commands.doctor import remote as doctor_remote
from gpuscope.cli.remote import Target
from gpuscope.store.source import AgentSource
from tests.fakes import remembering
from tests.tui.test_doctor_tab import growing

ARGS = argparse.Namespace(torch=False, ssh_command="ssh", remote_python="")


def test_growth_is_judged_at_once_by_what_the_trainer_there_remembers(tmp_path):
    argv = remembering.agent(tmp_path, growing(4), remembering.leak())
    ways = SimpleNamespace(source=lambda target, hz: AgentSource(argv, "there", "node-17"))
    report = asyncio.run(
        doctor_remote._one(ways, Target("ssh", "node-17:48201", "node-17", 48201), 2.2, ARGS)
    )  # type: ignore[arg-type]
    found = next(one for one in report.findings if one.cause == "live.memory_grows")
    assert "MiB per step" in found.evidence[0].text
    assert found.verify.startswith("gpuscope doctor node-17:48201    "), found.verify
    commands = [fix.command for fix in found.fixes if fix.command]
    assert commands
    assert all("node-17:48201" in command for command in commands), commands
