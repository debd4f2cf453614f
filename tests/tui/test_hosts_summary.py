"""What a host is worth a line for, how grave it is, and an order that does not jump about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpuscope.cli.main import main
from gpuscope.doctor import table
from gpuscope.doctor.finding import Finding, Fix
from gpuscope.exit_status import ExitStatus
from gpuscope.store.view import HostView, Link, no_history
from gpuscope.text import styled
from gpuscope.text.width import cells as text_cells
from gpuscope.tui.hosts.findings import finding_lines
from gpuscope.tui.hosts.host_brief import brief_lines
from gpuscope.tui.hosts.jobs import across
from gpuscope.tui.hosts.order import ANEW_SECONDS, BETTER_SECONDS, Order, natural, sorts_of
from gpuscope.tui.hosts.rows import EachDevice, columns, host_row, room_pieces, totals_lines
from gpuscope.tui.hosts.runs import NOTHING, joined, row_of
from gpuscope.tui.hosts.summary import Grade, HostSummary, Level, Missing, Word, summarise, totals
from gpuscope.tui.hosts.watch import FORGET_SECONDS, HIDDEN_SECONDS, SUM_SECONDS, Fleet
from gpuscope.tui.theme import THEMES, Tokens
from gpuscope.tui.widgets.table import lay_out
from gpuscope.wire import frames as f
from tests.doctor import test_live
from tests.doctor.test_live_on_cpu import on_a_cpu
from tests.fakes import fleet, jobs, views
from tests.fakes.views import flat

LIVE = Link("live")
FULL = f.Sample(999, int((views.END + 1) * 1e9), g=[views.device_row(2, 139.0, 95.0)])
TOKENS = Tokens(THEMES[0])


def host(kind: str = "busy", number: int = 1, link: Link = LIVE, seconds: float = 6.0) -> HostView:
    frames = [] if kind == "" else fleet.node(number, kind, seconds=seconds)
    store, _ = fleet.store_of({f"node-{number:02d}": (frames, link)})
    found = store.host(f"node-{number:02d}")
    assert found is not None
    return found


def one(key: str, grade: Grade = Grade.FINE, **more: object) -> HostSummary:
    return replace(HostSummary(key, key, grade, (), True, True, "live"), **more)  # type: ignore[arg-type]


# ── one host ──


@pytest.mark.parametrize(
    ("kind", "grade", "said", "busy", "idle", "free"),
    [
        ("busy", Grade.FINE, "", 8, 0, 0),
        ("stalled", Grade.STALLED, "rank 3 is stuck at data.py:88 in __getitem__", 0, 8, 0),
        ("lost", Grade.BROKEN, "GPU 5 lost: fallen off the bus", 5, 0, 2),
        ("tight", Grade.TIGHT, "GPU 0 full", 8, 0, 0),
        ("idle", Grade.IDLE, "", 0, 3, 5),
        ("free", Grade.IDLE, "", 0, 0, 8),
    ],
)
def test_a_host_in_a_line(kind, grade, said, busy, idle, free):
    found = summarise(host(kind))
    assert (found.grade, found.busy, found.idle, found.free, found.devices) == (
        grade,
        busy,
        idle,
        free,
        8,
    )
    assert said in (found.words[0][1] if found.words else "")
    assert found.current
    assert found.state == "live"


def test_figures_are_means_and_sums_of_what_is_known():
    shown = host("lost")
    known = [d for d in shown.devices if d.number("utilization_percent") is not None]
    found = summarise(shown)
    assert len(known) == 7
    loads = [d.number("utilization_percent") or 0.0 for d in known]
    assert found.utilization_percent == pytest.approx(sum(loads) / 7)
    assert found.used_bytes == sum(d.number("used_bytes") or 0 for d in known)
    assert found.total_bytes == 8 * views.TOTAL
    assert found.pace_seconds == max(t.number("step_seconds") or 0 for t in shown.trainers)
    assert (found.job, found.jobs) == ("train.py", ("job-1",))


@pytest.mark.parametrize(
    ("link", "state", "grade", "said"),
    [
        (Link("connecting", "starting node-01"), "connecting", Grade.CONNECTING, ""),
        (
            Link("connecting", "node-01 is queued to connect"),
            "queued",
            Grade.CONNECTING,
            "",
        ),
        (
            Link(
                "connecting", "node-01: no ssh server listens there; trying again in 8 s", None, 8.0
            ),
            "unreachable",
            Grade.UNREACHABLE,
            "no ssh server listens there",
        ),
        (
            Link("ended", "node-01: permission denied"),
            "unreachable",
            Grade.UNREACHABLE,
            "permission denied",
        ),
        (
            Link("ended", "node-01: its host key is unknown"),
            "unreachable",
            Grade.UNREACHABLE,
            "its host key is unknown",
        ),
    ],
)
def test_a_host_that_never_answered_says_why(link, state, grade, said):
    found = summarise(host("", link=link))
    assert (found.state, found.grade, found.answered, found.current) == (state, grade, False, False)
    assert found.words == ((Word(Grade.UNREACHABLE, said),) if said else ())


def test_what_is_stale_keeps_its_figures_and_loses_its_troubles():
    found = summarise(host("stalled", link=Link("stale", "no data for 12 s", 12.0)))
    assert (found.grade, found.state, found.devices) == (Grade.STALE, "stale", 8)
    assert found.words == (Word(Grade.STALE, "connected, but no data"),)
    row = host_row(found, TOKENS, missing=Missing(12.0))
    assert row.cells["state"] == [("stale 12s", "warn")]
    assert row.cells["load"][0][1] == "faint"  # type: ignore[index]
    told = flat(line for _, line in finding_lines(found, Missing(12.0), 120, TOKENS))
    assert " for 12 s · F5: connect now · the figures are from before" in told


@pytest.mark.parametrize(
    ("retry", "next_step", "worst"),
    [
        (None, "no retry", "it does not answer · no retry"),
        (7.6, "retry in 8 s", "retry in 8 s: it does not answer"),
        (0.0, "trying now", "trying now: it does not answer"),
    ],
)
def test_an_unreachable_host_says_since_when_why_and_what_happens_next(retry, next_step, worst):
    link = Link("stale", "node-01: it does not answer; trying again in 8 s", 95.0, 8.0)
    found = summarise(host("busy", link=link))
    missing = Missing(95.0, retry)
    row = host_row(found, TOKENS, missing=missing)
    assert row.cells["state"] == [("unreachable 1m", "bad")]
    assert row.cells["mark"] == [("▲", "bad")]
    assert flat([row.cells["worst"]]) == worst
    told = flat(line for _, line in finding_lines(found, missing, 120, TOKENS))
    assert f", for 1 min 35 s · {next_step} · F5: connect now" in told
    assert "it does not answer" in told


def test_when_it_is_tried_again_counts_down_and_stands_still_with_the_screen():
    store, _ = fleet.store_of({"h1": ([], LIVE), "h2": (fleet.node(2, "busy", 3.0), LIVE)})
    clock, stopped = Clock(), []
    watched = Fleet(lambda: store, lambda: stopped[0] if stopped else None, clock)
    store.set_link("h1", Link("connecting", "no; trying again in 8 s", None, clock.now + 8))
    (one, _) = watched.look()
    assert watched.missing(one) == Missing(0.0, 8.0)
    clock.now += 3
    watched.look()
    assert watched.missing(one) == Missing(3.0, 5.0), "since it was first seen so"
    stopped.append(store.view())
    watched.look()
    clock.now += 9
    watched.look()
    assert watched.missing(one) == Missing(3.0, 5.0)
    stopped.clear()
    watched.look()
    assert watched.missing(one) == Missing(12.0, 0.0)


def test_what_the_doctor_says_comes_before_what_a_glance_tells():
    found = summarise(host("stalled"), (Word(Grade.STALLED, "Hang: rank 3"),))
    assert found.words == (Word(Grade.STALLED, "Hang: rank 3"),)
    assert summarise(host("busy"), (Word(Grade.WARNING, "it starves"),)).grade is Grade.WARNING


# ── the order ──


def keys(found: Sequence[HostSummary]) -> list[str]:
    return [each.key for each in found]


def test_the_worst_first_and_names_as_people_count():
    hosts = [one(f"n{12 - grade}", grade) for grade in reversed(Grade)]
    arranged = Order().arrange(hosts, "worst", 0.0)
    assert [each.grade for each in arranged] == sorted(each.grade for each in hosts)
    assert keys(
        Order().arrange([one("n10"), one("n9"), one("N2"), one("m"), one("n²")], "worst", 0.0)
    ) == [
        "m",
        "N2",
        "n9",
        "n10",
        "n²",
    ]
    assert natural("a" + "9" * 5000) > natural("a1")


def test_worse_rises_at_once_and_better_sinks_late():
    order = Order()
    fine, bad = [one("a"), one("b")], [one("a"), one("b", Grade.PROBLEM)]
    assert keys(order.arrange(fine, "worst", 0.0)) == ["a", "b"]
    assert keys(order.arrange(bad, "worst", 1.0)) == ["b", "a"]
    assert keys(order.arrange(fine, "worst", 2.0)) == ["b", "a"]
    assert keys(order.arrange(bad, "worst", 2.0 + BETTER_SECONDS)) == ["b", "a"], (
        "it was worse again in between"
    )
    assert keys(order.arrange(fine, "worst", 3.0 + BETTER_SECONDS)) == ["b", "a"]
    assert keys(order.arrange(fine, "worst", 3.1 + 2 * BETTER_SECONDS)) == ["a", "b"]


def test_a_pause_between_two_steps_moves_nothing():
    order = Order()
    for now in range(40):
        grade = Grade.IDLE if now % 4 == 3 else Grade.FINE
        assert keys(order.arrange([one("a"), one("b", grade)], "worst", float(now))) == ["a", "b"]
    for now in range(40, 55):
        arranged = order.arrange([one("a"), one("b", Grade.IDLE)], "worst", float(now))
    assert keys(arranged) == ["b", "a"]


def test_a_host_that_has_connected_leaves_its_place_at_once():
    order = Order()
    order.arrange([one("a"), one("b", Grade.CONNECTING)], "worst", 0.0)
    assert keys(order.arrange([one("a"), one("b")], "worst", 0.1)) == ["a", "b"]


@pytest.mark.parametrize(
    ("sort", "high", "low"),
    [
        ("load", {"utilization_percent": 90.0}, {"utilization_percent": 10.0}),
        ("free", {"free": 8}, {"free": 1}),
        (
            "memory",
            {"used_bytes": 9.0, "total_bytes": 10.0},
            {"used_bytes": 1.0, "total_bytes": 10.0},
        ),
    ],
)
def test_columns_of_figures_are_sorted_now_and_then(sort, high, low):
    order = Order()
    assert keys(order.arrange([one("a", **low), one("b", **high), one("c")], sort, 0.0))[0] == "b"
    swapped = [one("a", **high), one("b", **low), one("c")]
    assert keys(order.arrange(swapped, sort, ANEW_SECONDS - 1))[0] == "b"
    assert keys(order.arrange(swapped, sort, ANEW_SECONDS + 1))[0] == "a"
    assert len(order.arrange([*swapped, one("d")], sort, ANEW_SECONDS + 1.5)) == 4, (
        "a new host is there at once"
    )


def test_hosts_are_sorted_by_what_any_of_them_has():
    assert sorts_of([one("a")]) == ["worst", "name"]
    assert sorts_of([one("a"), one("b", pace_seconds=0.2)]) == ["worst", "name", "pace"]
    assert sorts_of([one("a", devices=1)]) == ["worst", "name", "free", "load", "memory"]
    slow, quick = one("slow", pace_seconds=2.0), one("quick", pace_seconds=0.1)
    assert keys(Order().arrange([one("none"), quick, slow], "pace", 0.0)) == [
        "slow",
        "quick",
        "none",
    ]


# ── all of them ──


def test_totals_and_where_there_is_room():
    hosts = [
        host("busy", 1),
        host("free", 2),
        host("lost", 3),
        host("idle", 4, Link("stale", "x", 9.0)),
        host("", 5, Link("ended", "node-05: no")),
        host("", 6, Link("connecting", "starting")),
    ]
    now = totals([summarise(each) for each in hosts])
    assert (now.hosts, now.reachable, now.stale, now.unreachable) == (6, 3, 1, 1)
    assert (now.connecting, now.lost, now.unheard) == (1, 1, 8)
    assert (now.devices, now.busy, now.idle, now.free) == (32, 13, 0, 10)
    assert now.devices == now.busy + now.idle + now.free + now.lost + now.unheard
    assert now.problems == 1
    assert [entry[:2] for entry in now.room] == [("node-02", 8), ("node-03", 2)], (
        "a stale host offers no room"
    )
    assert now.jobs == 2
    text = "".join(part for part, _ in room_pieces(now, 100))
    assert text.startswith("free: node-02 8× 139 GiB · node-03 2×")
    for cells in (20, 40, 76, 116):
        for line in totals_lines(now, 6, cells, TOKENS)[1:]:
            assert styled.cells(line) <= max(cells, 60)


def test_a_host_with_a_warning_is_not_counted_as_well():
    waits, well = test_live.one(80, **jobs.split(0.5, input=0.6)), test_live.one(80)
    store, _ = fleet.store_of({"h1": (waits, LIVE), "h2": (well, LIVE)})
    warning = [Word(Grade.WARNING, "train.py waits for input 60 % of the last 32 steps")]
    found = [
        summarise(host, said) for host, said in zip(store.view().hosts, [warning, []], strict=True)
    ]
    line = flat(totals_lines(totals(found), 2, 116, TOKENS)[:1])
    assert line == "2 hosts: ◆ 1 with a warning · 1 ok"


def test_a_job_on_two_hosts_names_the_host_that_keeps_it():
    store, _ = fleet.store_of({f"h{n}": (fleet.node(n, "across", 6.0), LIVE) for n in (2, 3)})
    assert across(store.view().hosts) == {}
    for key, first in (("h2", 0), ("h3", 8)):
        q = f.Sample(900, int((views.END + 60) * 1e9))
        for rank in range(8):
            behind = first + rank == 11
            where = "data.py:88 __getitem__" if behind else "train.py:60 all_reduce"
            q.t.append(
                views.trainer_row(
                    rank,
                    4000,
                    0.9,
                    step_age_seconds=60.0,
                    collectives=899 if behind else 900,
                    stall_at=where,
                )
            )
        store.apply(key, q, 1.0)
    said = across(store.view().hosts)
    job = store.view().hosts[0].jobs[0]
    of_job = job.key, job.title
    assert said["h3"] == [
        Word(
            Grade.BROKEN,
            "keeps 1 other hosts: rank 11 is stuck at data.py:88 in __getitem__; "
            "ranks 0–10, 12–15 wait in all_reduce",
            *of_job,
        )
    ]
    assert said["h2"] == [Word(Grade.STALLED, "waits for rank 11 on node-03", *of_job)]
    store.set_link("h3", Link("stale", "gone", 5.0))
    assert across(store.view().hosts) == {}, "what is stale proves nothing"


@pytest.mark.parametrize(
    ("frames", "state", "eta"),
    [
        (jobs.ranks(), "● trains", True),
        (jobs.ranks(stalled=True), "▲ stalled", False),
        (on_a_cpu(test_live.one(80, **jobs.split(0.5, input=0.6))), "◆ input-bound", True),
        (jobs.lose(jobs.ranks(), 1), "▲ lost GPU 1 of rank 1", False),
        ([*jobs.ranks(leaks=2), FULL], "▲ filling GPU 2", False),
    ],
    ids=["well", "stalled", "waits", "lost", "filling"],
)
def test_the_fleet_says_of_a_job_what_the_job_itself_says(frames, state, eta):
    store, _ = fleet.store_of({"h1": (frames, LIVE)})
    (host,) = store.view().hosts
    (one,) = joined([("h1", summarise(host).runs())])
    cells = row_of(one, TOKENS.glyphs).cells
    assert flat([cells["state"]]) == state
    assert (cells["eta"] != NOTHING) == eta


@pytest.mark.parametrize(("grade", "sign"), [(Grade.WARNING, "◆"), (Grade.PROBLEM, "▲")])
def test_a_job_that_steps_is_not_told_to_be_well_where_something_is_found_on_it(grade, sign):
    calm, slow = host("busy", 1), host("busy", 2)
    (job,) = slow.jobs
    found = [Word(grade, "Rank 1 keeps the others waiting", job.key, job.title)]
    runs = [("a", summarise(calm).runs()), ("b", summarise(slow, found).runs())]
    first, second = (row_of(each, TOKENS.glyphs).cells["state"] for each in joined(runs))
    assert flat([first]).replace("  ", " ") == f"{sign} Rank 1 keeps the others waiting"
    assert flat([second]) == "● trains"


def test_jobs_that_only_share_a_name_are_not_joined():
    store, _ = fleet.store_of({f"h{n}": (fleet.node(4, "across", 4.0), LIVE) for n in (1, 2)})
    assert across(store.view().hosts) == {}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def sample(kind: str, number: int, q: int) -> f.Sample:
    """Tick ``q`` of a host."""
    found = [
        frame for frame in fleet.node(number, kind, seconds=q + 1.0) if isinstance(frame, f.Sample)
    ]
    return found[q]


def test_only_what_is_on_the_screen_is_summed_up_with_every_sample():
    store, _ = fleet.store_of({f"h{n}": (fleet.node(n, "busy", 3.0), LIVE) for n in (1, 2)})
    clock = Clock()
    watched = Fleet(lambda: store, clock=clock)
    watched.look()
    watched.visible = {"h1"}
    before = {each.key: each for each in watched.all}
    for key, number in (("h1", 1), ("h2", 2)):
        store.apply(key, sample("busy", number, 4), 1.0)
    clock.now += SUM_SECONDS + 0.01
    now = {each.key: each for each in watched.look()}
    assert now["h1"] is not before["h1"]
    assert now["h2"] is before["h2"]
    clock.now += HIDDEN_SECONDS
    assert {each.key: each for each in watched.look()}["h2"] is not before["h2"]
    store.set_link("h2", Link("stale", "lost", 1.0))
    assert {each.key: each.state for each in watched.look()}["h2"] == "stale", (
        "the link is told at once"
    )


def test_the_rules_are_asked_in_turn_and_forgotten_late():
    store, _ = fleet.store_of({f"h{n}": (fleet.node(n, "stalled", 6.0), LIVE) for n in range(4)})
    clock = Clock()
    watched = Fleet(lambda: store, clock=clock)
    watched.look()
    pitfalls = table.load()
    for _ in range(12):
        watched.judge(pitfalls)
    assert not watched.judge(pitfalls), "nothing new has come"
    for found in watched.look():
        assert found.words[0].grade is Grade.STALLED
        assert found.words[0].text.startswith("Hang: rank 3 is stuck at data.py:88")
    clock.now += FORGET_SECONDS + 1
    assert watched.look()[0].words[0][1].startswith("stalled: rank 3"), (
        "what a glance tells is left"
    )


def found_on(one: HostSummary, watched: Fleet, cells: int) -> list[str]:
    lines = finding_lines(one, Missing(), cells, TOKENS, watched.told(one))
    return [flat([line]) for _, line in lines]


def test_the_worst_that_a_device_has_says_what_to_do_first_as_its_host_does():
    store, _ = fleet.store_of({"h0": (views.hung(), LIVE)})
    watched = Fleet(lambda: store, clock=Clock())
    watched.look()
    watched.judge(table.load())
    (one,) = watched.look()
    worst = next(word for word in one.words if word.text.startswith("GPU 3 hung: "))
    said, first = worst.text, watched.told(one)[worst].first
    assert first is not None
    assert first.command == "kill 48216"
    lines = found_on(one, watched, 120)
    at = next(n for n, line in enumerate(lines) if said in line)
    assert lines[at + 1].startswith("  do first: End the job on it")
    (beside, *_) = found_on(one, watched, 200)
    assert said in beside
    assert "   do first: End the job on it" in beside, "in the same line, where it has room"
    host = watched.host("h0")
    assert host is not None
    found = [watched.told(one)[worst].finding, *watched.findings("h0")]
    shown = flat(brief_lines(host, one, found, no_history, TOKENS, 100, 50))
    assert "why       " in shown
    assert "End the job on it" not in shown, "which stands above"


@pytest.mark.parametrize("rows", range(6, 16))
def test_of_a_finding_that_has_no_room_whole_steps_stand_and_the_rest_are_counted(rows):
    fixes = tuple(
        Fix(title=f"Step {number}", code=f"begin_{number}()\nend_{number}()")
        for number in range(1, 5)
    )
    found = Finding(
        pitfall="fp16-overflow",
        cause="loss.not_finite",
        title="The loss is NaN",
        severity="problem",
        confidence="definite",
        evidence=(),
        fixes=fixes,
    )
    host = views.host_of(jobs.ranks())
    lines = brief_lines(host, summarise(host), [found], no_history, TOKENS, 100, rows)
    shown = flat(lines)
    assert len(lines) <= rows
    begun = [number for number in range(2, 5) if f"Step {number}" in shown]
    assert all(f"end_{number}()" in shown for number in begun)
    left = 3 - len(begun)
    assert (f"{left} more step" in shown) == bool(left)


def test_first_steps_stand_beside_the_findings_that_leave_room_and_below_the_others():
    store, _ = fleet.store_of({"h0": (views.hung(), LIVE)})
    watched = Fleet(lambda: store, clock=Clock())
    watched.look()
    watched.judge(table.load())
    known = next(iter(watched.told(watched.look()[0]).values()))
    step = "  do first: End the job on it"
    words = tuple(
        Word(Grade.PROBLEM, letter * size) for letter, size in (("a", 8), ("b", 20), ("c", 90))
    )
    told = dict.fromkeys(words, known)
    found = one("h", Grade.PROBLEM, words=words)
    lines = [flat([line]) for _, line in finding_lines(found, Missing(), 130, TOKENS, told)]
    assert [line.find(step) for line in lines] == [23, 23, -1, 0]
    assert {styled.cells(line) <= 130 for _, line in finding_lines(found, Missing(), 130, TOKENS)}
    narrow = [line for _, line in finding_lines(found, Missing(), 60, TOKENS, told)]
    assert max(map(styled.cells, narrow)) <= 60
    assert "without this GPU" in " ".join(flat(narrow).split()), "wrapped, not cut"


def test_a_full_card_says_what_to_do_first():
    store, _ = fleet.store_of({"h0": (fleet.node(1, "tight", 6.0), LIVE)})
    watched = Fleet(lambda: store, clock=Clock())
    watched.look()
    watched.judge(table.load())
    (found,) = watched.look()
    said = found_on(found, watched, 120)
    assert said[0].startswith("◆ GPU 0 full: 1.70 GiB free of 140 GiB (and 7 more)")
    assert said[1].startswith("  do first: Use a smaller micro-batch")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Hang: stuck at late.py:12 in read", "late.py: Hang: stuck at late.py:12 in read"),
        ("The loss is NaN", "late.py: The loss is NaN"),
        ("late.py waits", "late.py waits"),
        ("Hang of late.py: stuck at late.py:12", "Hang of late.py: stuck at late.py:12"),
    ],
)
def test_a_finding_begins_with_its_job_where_it_names_but_a_line_of_it(text, named):
    assert Word(Grade.STALLED, text, "pid-1", "late.py").named == named


def test_two_jobs_of_one_script_have_findings_of_their_own():
    words = [Word(Grade.PROBLEM, "The loss is NaN", key, "nan.py") for key in ("pid-1", "pid-2")]
    found = one("h", Grade.PROBLEM, words=tuple(words))
    first, second = (key for key, _ in finding_lines(found, Missing(), 80, TOKENS))
    assert first != second


def test_filter_and_mine():
    store, _ = fleet.store_of(
        {
            "a1": (fleet.node(1, "busy", 3.0), LIVE),
            "b2": (fleet.node(2, "idle", 3.0), LIVE),
            "c3": ([], Link("ended", "c3: permission denied")),
        }
    )
    watched = Fleet(lambda: store)
    watched.look()
    for text, left in (
        ("", "c3 b2 a1"),
        ("JUPYTER", "b2"),
        ("permission denied", "c3"),
        ("node-0", "b2 a1"),
        ("zzz", ""),
    ):
        assert " ".join(keys(watched.shown(text=text))) == left
    assert keys(watched.shown(mine=True)) == ["a1"]
    assert watched.totals().hosts == 3, "totals are of all"


# ── columns ──


def drawn(levels: Sequence[Level], cells: int = 16, current: bool = True) -> list[tuple[str, str]]:
    pieces = EachDevice(tuple(levels), current).draw(cells, TOKENS.glyphs)
    return [(char, token) for text, token in pieces for char in text]


def test_each_gpu_is_a_block_and_one_in_trouble_a_sign_that_needs_no_colour():
    levels = [
        Level(8, "ok"),
        Level(0, "idle"),
        Level(None, "bad"),
        Level(1, "warn"),
        Level(None, "ok"),
    ]
    assert drawn(levels) == [
        ("█", "ok"),
        ("▁", "idle"),
        ("▲", "bad"),
        ("▁", "warn"),
        ("┄", "faint"),
    ]
    assert {token for _, token in drawn(levels, current=False)} == {"faint"}


def test_more_gpus_than_cells_share_them_and_none_in_trouble_is_hidden():
    levels = [Level(8, "ok"), Level(4, "ok")] * 8
    assert drawn(levels, 8) == [("▆", "ok")] * 8
    levels[5] = Level(None, "bad")
    assert drawn(levels, 8)[2] == ("▲", "bad")
    assert [char for char, _ in drawn(levels, 8)].count("▲") == 1


@pytest.mark.parametrize(
    ("kind", "signs"), [("lost", "▲"), ("stalled", "▲"), ("busy", ""), ("idle", "")]
)
def test_the_gpus_of_a_host_in_its_row(kind, signs):
    row = host_row(summarise(host(kind)), TOKENS)
    pieces = row.cells["each"].draw(8, TOKENS.glyphs)  # type: ignore[union-attr]
    text = "".join(part for part, _ in pieces)
    assert len(text) == 8
    assert "".join(char for char in text if char == "▲") == signs


@pytest.mark.parametrize("terminal", [60, 80, 100, 120, 160, 200])
def test_the_columns_that_matter_stay(terminal):
    inner = terminal - 8  # frame, padding, cursor, scroll mark
    placed = {column.key: cells for column, cells in lay_out(columns("worst", terminal), inner, 1)}
    assert {"mark", "host", "state", "free", "load", "pace", "worst"} <= set(placed)
    assert sum(placed.values()) + len(placed) - 1 <= max(inner, 68)
    if terminal >= 100:
        assert "each" in placed
    if terminal >= 120:
        assert {"busy", "memory", "each", "job"} <= set(placed)
        assert placed["worst"] >= 29


def test_every_cell_fits_its_column_whatever_a_host_calls_itself():
    name = "\x1b]0;x\x07" + "宽" * 60 + "\u202egpj.exe" + "[link=x]"
    store, _ = fleet.store_of({"h": (fleet.node(1, "busy", 3.0, name=name), LIVE)})
    shown = store.host("h")
    assert shown is not None
    row = host_row(summarise(shown), TOKENS)
    from gpuscope.tui.widgets.table import LiveTable

    painted = LiveTable(columns("worst"), gap=1)
    for column, cells in lay_out(columns("worst"), 74, 1):
        pieces = painted._cell(
            row.cells.get(column.key, ""), row.style, column, cells, TOKENS.glyphs
        )
        assert sum(text_cells(text) for text, _ in pieces) <= cells or column.key == "host"


# ── more than one viewer shows ──


@pytest.mark.parametrize("count", [65, 300])
def test_more_hosts_than_64_are_handed_to_prometheus(count, tmp_path, capsys):
    names = tmp_path / "hosts"
    names.write_text("".join(f"node-{number}\n" for number in range(count)))
    assert main(["attach", "--hosts", str(names)]) == ExitStatus.USAGE
    said = capsys.readouterr().err
    assert f"{count} hosts: one viewer shows at most 64; nothing was started" in said
    assert "gpuscope export" in said
    assert "demos/fleet/" in said


def test_the_row_of_a_host_names_the_job_that_hangs_as_its_worst_does():
    one, two = views.host_of(jobs.ranks()), views.host_of(jobs.ranks(stalled=True))
    (well,), (hangs,) = one.jobs, two.jobs
    well, hangs = replace(well, key="a", title="a.py"), replace(hangs, title="hang.py")
    told = summarise(replace(two, jobs=(well, hangs)))
    assert told.job == "hang.py"
    assert told.pace_seconds is None


def test_the_job_on_the_row_of_a_host_is_the_one_its_worst_is_about():
    one, two = views.host_of(jobs.ranks()), views.host_of(jobs.ranks(stalled=True))
    (well,), (hangs,) = one.jobs, two.jobs
    well = replace(well, key="nan", title="nan.py")
    both = replace(two, jobs=(replace(hangs, title="late.py"), well))
    found = [Word(Grade.PROBLEM, "The loss is NaN since step 160", "nan", "nan.py")]
    told = summarise(both, found)
    row = host_row(told, TOKENS)
    assert flat([row.cells["job"]]).replace("  ", " ") == "late.py +1", "a hang comes first"
    assert flat([row.cells["worst"]]).endswith(" · 1 more")
    narrow = host_row(told, TOKENS, narrow=True, room=400).cells["worst"]
    stalled, nan = flat([narrow]).split(" · ")
    assert stalled.startswith("late.py: stalled: rank ")
    assert nan == "nan.py: The loss is NaN since step 160"
    roomy = flat([host_row(told, TOKENS, room=400).cells["worst"]])
    assert roomy.startswith("stalled: rank ")
    little = flat([host_row(told, TOKENS, room=24).cells["worst"]])
    assert little == "stalled: rank … · 1 more"
    below = [flat([line]) for _, line in finding_lines(told, Missing(), 200, TOKENS)]
    assert below[0].startswith("▲ late.py: stalled: rank ")
    assert below[1] == "▲ nan.py: The loss is NaN since step 160", "of the other job: not hidden"
