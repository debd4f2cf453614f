"""``gpuscope attach PID`` offers what each process would need, where nothing of it is seen.

The cursor is on that process; what ssh asks is shown too, all in a small terminal.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from gpuscope.attach.askpass import Questions, SshQuestion
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.background import sources as hosts_module
from gpuscope.tui.background.sources import Hosts
from gpuscope.tui.hosts.ssh_dialog import SshPrompt
from gpuscope.tui.shell.session import Session
from gpuscope.tui.trainer.attach_screen import AttachScreen
from tests.tui.pilot import WAIT_SECONDS, in_loop
from tests.tui.snapshots import text
from tests.tui.test_attach import CLOSED, Host, process, ranks

SIZE = (80, 24)


@pytest.fixture(autouse=True)
def soon(monkeypatch, tmp_path):
    monkeypatch.setattr(hosts_module, "UNSEEN_SECONDS", 0.1)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


class Telling(Host):
    """A host that names a process that is no trainer only where it is asked for it.

    An agent does the same.
    """

    async def inject(self, args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
        answer = await super().inject(args, on_progress, path)
        if args["method"] == "list":
            pids = args["pids"].split(",")
            answer["processes"] = [
                one for one in answer["processes"] if one["torch"] or str(one["pid"]) in pids
            ]
        return answer


def came_for(pid: int, processes: list[Any]) -> GpuscopeApp:
    source = Telling(processes)
    made: list[GpuscopeApp] = []
    hosts = Hosts([source], [(source.key, pid)], lambda pid: made[0].open("attach", pid))
    made.append(GpuscopeApp(Session(make_hosts=lambda hz: hosts), "overview"))
    return made[0]


async def until(pilot: Any, good: Any) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not good():
        assert time.monotonic() < deadline, text(pilot.app)
        await pilot.pause(0.02)


async def opened(app: GpuscopeApp, pilot: Any) -> AttachScreen:
    await until(
        pilot, lambda: isinstance(app.screen, AttachScreen) and app.screen.found is not None
    )
    screen = app.screen
    assert isinstance(screen, AttachScreen)
    await pilot.pause()
    return screen


@in_loop
async def test_a_process_that_is_not_seen_is_shown_with_what_it_needs():
    app = came_for(702, [process(701), process(702)])
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        _, item = screen.under_cursor()
        assert item is not None
        assert item.pid == 702


@in_loop
async def test_a_process_without_torch_is_asked_for_and_shown_with_the_reason():
    app = came_for(55, [process(701), process(55, torch=False, look=CLOSED)])
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        _, item = screen.under_cursor()
        assert item is not None
        assert (item.pid, "ptrace_scope=1" in item.needs) == (55, True)


@in_loop
async def test_a_launcher_means_its_ranks():
    launcher = process(699, role="launcher", launches=[700, 701])
    app = came_for(699, [process(650), *ranks(2), launcher])
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        group, item = screen.under_cursor()
        assert group is not None
        assert item is None, "the job's own line"
        assert [one.pid for one in group.items] == [700, 701]
        assert any("699 is a launcher" in note for note in screen.found.notes)


@in_loop
async def test_a_process_that_is_not_there_is_said():
    app = came_for(22, [process(701)])
    async with app.run_test(size=SIZE) as pilot:
        screen = await opened(app, pilot)
        assert any("pid 22 is not there" in note for note in screen.found.notes)


# ── what ssh asks ──

QUESTION = SshQuestion(
    "The authenticity of host '[127.0.0.1]:34869 ([127.0.0.1]:34869)' can't be established.",
    False,
    True,
    False,
    "far",
)


@in_loop
async def test_no_word_of_a_question_is_lost_in_a_small_terminal():
    app = came_for(1, [])
    async with app.run_test(size=SIZE) as pilot:
        app.push_screen(SshPrompt(QUESTION))
        await until(pilot, lambda: isinstance(app.screen, SshPrompt))
        await pilot.pause()
        missing = [word for word in QUESTION.prompt.split() if word not in text(app)]
        assert missing == []


def test_a_secret_that_was_not_taken_is_asked_for_again_as_such():
    asked, one, seen = Questions({}, "far"), threading.Lock(), []

    def answer(question: SshQuestion) -> str:
        seen.append(question.again)
        return "x"

    password = SshQuestion("ann@far's password:", True, False, False)
    for question in (password, SshQuestion("key?", True, False, False), password):
        asked.put(question, one, answer)
    asked.begin()  # another try to get there
    asked.put(password, one, answer)
    assert seen == [False, False, True, False]
