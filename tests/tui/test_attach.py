"""A process is attached to from the screen.

There are the list, consent by one key only, ranks one at a time, and what is written down.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from gpuscope.store.pending_requests import SourceError
from gpuscope.store.replay import ReplaySource
from gpuscope.store.view import Capabilities
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.background.sources import Hosts
from gpuscope.tui.shell.session import Session
from gpuscope.tui.trainer import attach_work, attachable
from gpuscope.tui.trainer.attach_consent_dialog import ConsentDialog
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.fakes.asked import AskedSource
from tests.recordings import REDACTED
from tests.tui.pilot import in_loop, until

SIZE = (120, 40)
LOOK: dict[str, Any] = {
    "best": "ptrace",
    "text": "",
    "rungs": [
        {
            "name": "probe",
            "open": False,
            "code": "none",
            "why": "no probe listens there.",
            "next": "Next run: run it",
        },
        {
            "name": "pep768",
            "open": False,
            "code": "unsupported",
            "why": "Python 3.11 has no such door.",
            "next": "",
        },
        {"name": "ptrace", "open": True, "code": "", "why": "", "next": ""},
        {"name": "outside", "open": True, "code": "", "why": "", "next": ""},
    ],
    "consent": {
        "pid": 1,
        "start": 2,
        "command": "python train.py",
        "user": "yours",
        "method": "ptrace",
        "effect": "stops its main thread.",
        "price": "it pauses for about 0.5 ms.",
        "undo": "detach.",
    },
}
CLOSED: dict[str, Any] = {
    "best": "outside",
    "text": "",
    "rungs": [
        {
            "name": "ptrace",
            "open": False,
            "code": "refused",
            "next": "Next run, no root:  gpuscope enable",
            "why": "this kernel lets only a parent process or root attach (ptrace_scope=1).",
        }
    ],
    "consent": None,
}


def process(
    pid: int, rank: int | None = None, world: int | None = None, job: str | None = None, **more: Any
) -> Any:
    return {
        "pid": pid,
        "start": pid * 10,
        "user": "ada",
        "mine": True,
        "command": "python train.py --lr 1",
        "role": "trainer",
        "name": "python",
        "parent": 1,
        "torch": True,
        "rank": rank,
        "local_rank": rank,
        "world_size": world,
        "job": job,
        "sibling_of": None,
        "slurm": None,
        "pod": None,
        "look": copy.deepcopy(LOOK),
        **more,
    }


class Host(AskedSource):
    """Answers as an agent does.

    An injection brings a trainer, unless ``fate`` has another end for its pid.
    """

    def __init__(
        self, processes: list[Any], frames: list[f.Frame] | None = None, key: str = views.SOURCE
    ) -> None:
        super().__init__(
            frames if frames is not None else views.vacant(2.0),
            inject=self.inject,
            detach=self.detach,
        )
        self.key, self.label = key, key
        self.processes, self.fate, self.held = processes, {}, asyncio.Event()  # type: ignore[var-annotated]
        self.held.set()
        self.sink: Any = None
        self.number = 9000

    async def run(self, sink: Any, on_link: Any) -> None:
        self.sink = sink
        await super().run(sink, on_link)

    async def inject(self, args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
        if args["method"] == "list":
            return {"processes": copy.deepcopy(self.processes), "note": ""}
        if on_progress is not None:
            on_progress(f.Progress(1, None, "left a call for the main thread"))
        await self.held.wait()
        fate = self.fate.get(args["pid"])
        if isinstance(fate, SourceError):
            raise fate
        self.number += 10
        row = next(row for row in self.processes if row["pid"] == args["pid"])
        self.tell(
            f.Def(self.number, proc=f.ProcDef(row["pid"], row["start"], mine=True, user="ada"))
        )
        self.tell(
            f.Def(
                self.number + 1,
                trainer=f.TrainerDef(
                    row["pid"],
                    row["start"],
                    self.number,
                    rank=row["rank"],
                    world_size=row["world_size"],
                    job=row["job"],
                    script="train.py",
                    origin="inject",
                ),
            )
        )
        if fate == "dies":
            for number in (self.number + 1, self.number):
                self.tell(f.Event(number, "gone", int((views.END + 1) * 1e9), "exited"))
        return {"method": args["method"], "stop_seconds": 0.0004, "ready_seconds": 0.31}

    async def detach(self, args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
        text = "the probe is gone; the process runs on"
        self.tell(f.Event(int(args["trainer"]), "gone", int((views.END + 1) * 1e9), text))
        return {}

    def tell(self, frame: f.Frame) -> None:
        self.sink(frame, views.END)

    @property
    def injected(self) -> list[Any]:
        return [
            args["pid"]
            for name, args in self.asked
            if name == "inject" and args["method"] != "list"
        ]


def ranks(
    count: int, world: int | None = None, job: str = "run-1@n1:29500", first: int = 0
) -> list[Any]:
    return [process(700 + first + i, first + i, world or count, job) for i in range(count)]


@pytest.fixture(autouse=True)
def logged(tmp_path, monkeypatch):
    """The file in which everything that was written to a process stands."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(attach_work, "WATCHED_SECONDS", 0.01)
    return tmp_path / "state" / "gpuscope" / "attach.log"


def make(source: AskedSource) -> GpuscopeApp:
    return GpuscopeApp(Session(make_source=lambda hz: source), "overview")


# ── one process ──


@in_loop
async def test_the_list_says_what_each_needs_and_asks_for_nothing():
    source = Host(
        [
            process(701),
            process(702, look=CLOSED),
            process(703, role="worker"),
            process(704, role="launcher"),
        ]
    )
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        screen = await until(
            pilot, "Attach · node-17", "your consent (ptrace)", "this kernel lets only a parent"
        )
        assert "703" not in screen
        assert "2 loader, compile or launcher processes are left out" in screen
        assert "Closed   probe: no probe listens there." in screen
        await pilot.press("j")
        await until(pilot, "Next run gpuscope enable")
        assert source.injected == []
        await pilot.press("escape")
        await until(pilot, "─ GPUs", absent="Attach · node-17")


@in_loop
async def test_consent_names_all_and_only_y_agrees(logged):
    source = Host([process(701)])
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "your consent (ptrace)")
        await pilot.press("enter")
        screen = await until(pilot, "Attach gpuscope's probe?", "y Attach")
        for part in (
            "pid 701",
            "node-17",
            "yours",
            "python train.py --lr 1",
            "ptrace. It stops",
            "0.5 ms",
            "detach.",
        ):
            assert part in screen
        await pilot.press("enter", "enter", "space", "Y", "tab")
        await until(pilot, "Enter does nothing here: y confirms")
        assert source.injected == []
        assert not logged.exists()
        await pilot.press("y")
        screen = await until(
            pilot, "Done     pid 701 on node-17: attached (ptrace)", "400 µs", "Enter Open it"
        )
        assert source.injected == [701]
        (asked,) = [
            args for name, args in source.asked if name == "inject" and args["method"] != "list"
        ]
        assert asked == {"pid": 701, "start": 7010, "method": "ptrace"}
        lines = logged.read_text().splitlines()
        assert len(lines) == 2
        assert all(
            "pid 701 (start 7010, ada) on node-17: python train.py --lr 1" in line for line in lines
        )
        assert lines[0].endswith("asked for")
        assert "attached (ptrace), main thread paused 400 µs" in lines[1]
        await pilot.press("enter")
        await until(pilot, "train.py", absent="Attach gpuscope's probe")
        await pilot.press("escape", "6")
        await until(pilot, "inject pid 701 on node-17: attached")


@in_loop
async def test_escape_at_the_question_leaves_it_alone():
    source = Host([process(701)])
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "your consent (ptrace)")
        await pilot.press("enter")
        await until(pilot, "y Attach")
        await pilot.press("escape")
        await until(pilot, "Attach · node-17", absent="y Attach")
        await pilot.press("y")
        assert source.injected == []


@pytest.mark.parametrize(
    ("how", "taking_out"),
    [
        ("closed", False),
        pytest.param("answered as it closes", False, marks=pytest.mark.slow),
        pytest.param("program leaves", False, marks=pytest.mark.slow),
        ("answered as it closes", True),
    ],
)
def test_a_question_that_goes_while_its_work_is_under_way_ends_the_work_without_an_error(
    how, taking_out
):
    @in_loop
    async def body():
        source = Host([process(701)])
        source.held.clear()

        async def detach(args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
            await source.held.wait()
            return {}

        source.answers["detach"] = detach
        async with make(source).run_test(size=SIZE) as pilot:
            await until(pilot, "live")
            await pilot.press("a")
            await until(pilot, "your consent (ptrace)")
            await pilot.press("enter", "y")
            dialog = pilot.app.screen
            if taking_out:
                source.held.set()
                await until(pilot, "Done     pid 701")
                await pilot.press("escape", "d")
                await until(pilot, "y Remove it")
                source.held.clear()
                await pilot.press("y")
                dialog = pilot.app.screen
            await until(pilot, "Working")
            assert isinstance(dialog, ConsentDialog)
            work = dialog._work
            if how == "program leaves":
                pilot.app.exit()
            else:
                pilot.app.pop_screen()
                if how == "answered as it closes":
                    source.held.set()
                await asyncio.wait({work}, timeout=10)
        assert work.done()
        assert work.cancelled() or work.exception() is None

    body()


@in_loop
async def test_a_busy_process_is_said_to_be_busy_and_not_attached(logged):
    source = Host([process(701)])
    source.fate[701] = SourceError(
        "busy", "its main thread did not come to a safe point within 5 s"
    )
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "your consent (ptrace)")
        await pilot.press("enter", "y")
        await until(
            pilot,
            "Stopped  pid 701 on node-17: busy, not attached: its main thread did not come",
            "0 of 1",
        )
        assert "not attached: busy" in logged.read_text()


@in_loop
async def test_what_is_closed_cannot_be_agreed_to():
    source = Host([process(702, look=CLOSED)])
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "ptrace_scope=1")
        await pilot.press("enter")
        await until(pilot, "Not now. The training was not touched", "gpuscope enable")
        await pilot.press("y")
        await pilot.pause()
        assert isinstance(pilot.app.screen, ConsentDialog)
        assert source.injected == []


@pytest.mark.slow
@in_loop
async def test_an_injected_probe_is_taken_out_after_a_question_and_others_stay(logged):
    source = Host([process(701), *ranks(1)], jobs.ranks(1, 2.0))
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "your consent (ptrace)")
        pilot.app.screen._table.move_to(f"{views.SOURCE} 48200")
        await until(pilot, "stays until the end")
        await pilot.press("d")
        await pilot.pause()
        assert not isinstance(pilot.app.screen, ConsentDialog)
        pilot.app.screen._table.move_to(f"{views.SOURCE} 701")
        await pilot.press("enter", "y")
        await until(pilot, "Done     pid 701")
        await pilot.press("escape")
        await until(pilot, "nothing: it has a probe (inject)", "d Remove the probe")
        await pilot.press("d")
        await until(pilot, "Remove the probe?", "y Remove it")
        assert [name for name, _ in source.asked].count("detach") == 0
        await pilot.press("enter")
        await until(pilot, "Enter does nothing here")
        await pilot.press("y")
        await until(pilot, "the probe is removed; the process continues")
        assert "detach" in logged.read_text().splitlines()[-1]


# ── whole jobs ──


@in_loop
async def test_a_jobs_ranks_are_attached_one_at_a_time_with_progress():
    source = Host(ranks(4))
    source.held.clear()
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "train.py ×4", "rank 3")
        await pilot.press("enter")
        await until(pilot, "Attach the probe to 4 ranks?", "one rank at a time, 4 in all")
        await pilot.press("y")
        await until(pilot, "rank 1 of 4", "left a call for the main thread")
        assert source.injected == [700], "the second waits for the first"
        source.held.set()
        await until(pilot, "Done     rank 3, pid 703 on node-17")
        assert source.injected == [700, 701, 702, 703]


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        (SourceError("refused", "no right"), "refused: no right"),
        ("dies", "it has ended: rank 1, pid 701 has ended"),
    ],
)
def test_the_first_refusal_or_harm_ends_it_and_says_what_was_done(fate, words):
    @in_loop
    async def body():
        source = Host(ranks(4))
        source.fate[701] = fate
        async with make(source).run_test(size=SIZE) as pilot:
            await until(pilot, "live")
            await pilot.press("a")
            await until(pilot, "train.py ×4")
            await pilot.press("enter", "y")
            screen = await until(pilot, "Done     rank 0, pid 700", words, "1 of 4 attached")
            assert "Not tried rank 2, pid 702, rank 3, pid 703" in screen
            assert source.injected == [700, 701]

    monkey = pytest.MonkeyPatch()
    monkey.setattr(attach_work, "SEEN_SECONDS", 0.3)
    try:
        body()
    finally:
        monkey.undo()


@pytest.mark.slow
@in_loop
async def test_escape_cancels_the_rank_under_way_and_keeps_what_was_done():
    source = Host(ranks(3))
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "train.py ×3")
        inject, calls = source.inject, []

        async def second_waits(args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
            calls.append(args)
            if len(calls) == 2:
                await asyncio.Event().wait()
            return await inject(args, on_progress, path)

        source.answers["inject"] = second_waits
        await pilot.press("enter", "y")
        await until(pilot, "rank 2 of 3")
        await pilot.press("escape")
        await until(
            pilot, "rank 1, pid 701 on node-17: cancelled", "1 of 3 attached", "Not tried rank 2"
        )
        assert source.cancelled == ["inject"]


@pytest.mark.slow
@in_loop
async def test_ranks_on_two_hosts_are_one_job_and_are_attached_where_they_run(logged):
    frames = {name: [views.hello(name), *views.vacant(2.0)[1:]] for name in ("n1", "n2")}
    here = Host(ranks(2, 4), frames["n1"], "n1")
    there = Host(
        [*ranks(2, 4, first=2), process(990, job="other", rank=0, world=2)], frames["n2"], "n2"
    )
    app = GpuscopeApp(Session(make_hosts=lambda hz: Hosts([here, there])), "overview")
    async with app.run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await until(pilot, "n1", "n2", "2 hosts: 2 ok")
        await pilot.press("a")
        screen = await until(pilot, "train.py ×4", "rank 3 on n2")
        assert "990" not in screen
        await pilot.press("enter", "y")
        await until(pilot, "Done     rank 3, pid 703")
        assert (here.injected, there.injected) == ([700, 701], [702, 703])
        assert len(logged.read_text().splitlines()) == 8


@in_loop
async def test_equal_meeting_points_on_the_loopback_of_two_hosts_are_two_jobs():
    items = [
        item
        for key in ("n1", "n2")
        for item in attachable.items_of(
            {"processes": ranks(2, 4, "localhost:29500")},
            views.store_of(views.vacant(1.0)).view().host,
            Host([], key=key),
        )[0]
    ]
    assert [len(group.items) for group in attachable.group_items(items)] == [2, 2]
    from dataclasses import replace

    assert [
        len(g.items)
        for g in attachable.group_items(replace(i, job="10.0.0.1:29500") for i in items)
    ] == [4]


@in_loop
async def test_children_of_one_parent_are_a_job():
    items, _, _ = attachable.items_of(
        {"processes": [process(701, sibling_of=700), process(702, sibling_of=700), process(703)]},
        views.store_of(views.vacant(1.0)).view().host,
        Host([]),
    )
    assert sorted(len(group.items) for group in attachable.group_items(items)) == [1, 2]


# ── where it cannot be ──


@in_loop
async def test_a_recording_cannot_be_attached_to():
    async with GpuscopeApp(
        Session(replay=ReplaySource(REDACTED / "h200x2-ddp.gsr")), "overview"
    ).run_test(size=SIZE) as pilot:
        await until(pilot, "REPLAY")
        await pilot.press("a")
        await until(pilot, "Attach: a recording has no process to attach to")


@in_loop
async def test_an_agent_that_does_not_offer_it_is_said():
    class Old(AskedSource):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities({"inject": "this agent does not support it"})

    async with make(Old(views.vacant(2.0))).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "Attach: this agent does not support it")


@pytest.mark.slow
@in_loop
async def test_an_agent_that_does_not_answer_is_a_line_and_r_asks_again():
    source = Host([process(701)])
    good, source.answers = source.answers, {}
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "Missing: this test does not answer inject")
        source.answers = good
        await pilot.press("r")
        await until(pilot, "your consent (ptrace)")


HOSTILE: list[Any] = [
    {},
    {"processes": 7},
    {"processes": [7, None, {}, {"pid": True}, {"pid": -1}, {"pid": 1 << 80}]},
    {
        "processes": [process(5, look=[1]), process(6, look={"rungs": {"a": 1}, "consent": 3})],
        "note": {"x": 1},
    },
    {"processes": [process(7, command=["x"], user=3, rank="0", job=9, world_size=[])]},
    {"processes": [process(8, look={**LOOK, "consent": {**LOOK["consent"], "method": "gdb"}})]},
]


@pytest.mark.parametrize("answer", HOSTILE)
def test_no_answer_of_an_agent_ends_the_screen_or_opens_a_way(answer):
    @in_loop
    async def body():
        host = views.store_of(views.vacant(1.0)).view().host
        items, _, _ = attachable.items_of(answer, host, Host([]))
        attachable.rows(attachable.group_items(items), False)
        assert all(
            isinstance(text, str)
            for item in items
            for line in attachable.about(item)
            for text, _ in line
        )
        assert all(
            item.consent is None or item.consent["method"] in attachable.METHODS for item in items
        )
        assert not [i for i in items if i.pid == 8 and i.consent]

    body()


@pytest.mark.slow
@in_loop
async def test_control_characters_of_a_command_do_not_reach_the_screen_or_the_file(logged):
    source = Host([process(701, command="python \x1b]52;c;eA==\x07 \u202e evil.py\nsecond")])
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, "your consent (ptrace)")
        await pilot.press("enter", "y")
        screen = await until(pilot, "Done     pid 701")
        text = screen + logged.read_text()
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
        assert len(logged.read_text().splitlines()) == 2


# ── from outside ──


@in_loop
async def test_the_overview_tells_step_and_loss_of_a_log_and_which_key_looks_inside():
    frames = views.vacant(2.0)
    last = f.Sample(
        99,
        int((views.END + 0.1) * 1e9),
        p=[
            views.row(
                "p",
                150,
                cpu_percent=0.1,
                rss_bytes=1,
                idle_seconds=400.0,
                log_step=1200,
                log_total=9000,
                log_loss=0.4321,
                log_age_seconds=130.0,
            )
        ],
    )
    async with make(AskedSource([*frames, last])).run_test(size=(160, 40)) as pilot:
        await until(
            pilot,
            "step 1,200 of 9,000, loss 0.4321 (from its log, 2 min",
            "idle for at least 6 min",
            "a: attach",
        )


# ── Slurm ──


@in_loop
async def test_the_end_of_a_slurm_job_stands_below_it_and_is_asked_once_a_minute():
    frames = jobs.ranks(2, 4.0)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer:
            frame.trainer.job = "slurm:77.0"
    end = views.WALL + 7200.0

    async def answer(args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
        return {"slurm_end": end}

    source = AskedSource(frames, environment=answer)
    async with make(source).run_test(size=SIZE) as pilot:
        await until(pilot, "slurm: job 77 ends", "before it is done")
        for _ in range(5):
            pilot.app.screen.refresh_all()
            await pilot.pause()
        assert source.asked == [("environment", {"slurm_job": "77"})]


@in_loop
async def test_why_the_end_of_a_slurm_job_is_not_known():
    frames = views.vacant(2.0)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.proc:
            frame.proc.slurm_job = "77"

    async def answer(args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
        return {
            "code": "not_supported",
            "text": "neither scontrol nor squeue is on this host's PATH",
        }

    async with make(AskedSource(frames, environment=answer)).run_test(size=SIZE) as pilot:
        await until(pilot, "slurm: end of job 77 unknown: neither scontrol nor squeue")
