"""The rows of the Log tab are in the order in which things happened, each thing once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.doctor.finding import Finding
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.text import styled
from gpuscope.text.clock import clock_text
from gpuscope.tui.background.finding_history import Case
from gpuscope.tui.background.happened import KEPT_OUTPUT, OUTPUT_CHARS, Happened
from gpuscope.tui.background.journal import Journal
from gpuscope.tui.background.log_entry import LogEntry
from gpuscope.tui.log.activity import activity
from gpuscope.tui.log.details import Around, beside_lines, details
from gpuscope.tui.shared.event_rows import (
    ALL,
    SHOWN,
    Sentence,
    chosen,
    columns,
    counts,
    day,
    event_lines,
    of_notices,
    row,
)
from gpuscope.tui.shell.notices import Notice
from gpuscope.tui.theme import Glyphs
from gpuscope.wire import frames as f
from gpuscope.wire.recording import RecordingReader
from tests.fakes import jobs, views
from tests.recordings import REDACTED

GLYPHS = Glyphs()
STOPPED: dict[int, str] = {}


def journal_of(frames, cases=(), stopped=STOPPED) -> Journal:
    journal = Journal()
    view(journal, frames, cases, stopped)
    return journal


def view(journal: Journal, frames, cases=(), stopped=STOPPED) -> None:
    host = views.host_of(frames)
    journal.look(host, cases, stopped)


def end(frames) -> int:
    return max(frame.m for frame in frames if hasattr(frame, "m"))


def gone(frames, reason: str, ids=range(300, 304)) -> list[f.Frame]:
    last = end(frames) + 1_000_000_000
    more = replace(
        [one for one in frames if isinstance(one, f.Sample)][-1], q=10**6, m=last + 10**9, t=[]
    )
    return [*frames, *(f.Event(number, "gone", last, reason) for number in ids), more]


def words(journal: Journal) -> list[str]:
    return [one.word for one in chosen(journal.entries.values())]


def test_a_finding_of_the_first_look_is_said_to_be_older():
    host = views.host_of(jobs.ranks(4, 20.0))
    now = host.sampled_seconds
    assert now is not None
    for before, told in ((True, " · already there"), (False, "")):
        journal = Journal()
        journal.look(host, [Case(1, finding("slow"), "live", "", now, before)], STOPPED)
        (said,) = (one.text for one in journal.entries.values() if "slow" in one.text)
        assert said == f"slow{told}"


def test_a_job_starts_and_ends_once_with_its_reason_and_last_loss():
    frames = jobs.ranks(4, 20.0)
    journal = journal_of(frames)
    assert words(journal) == ["started"]
    for _ in range(3):
        view(journal, gone(frames, "exited: RuntimeError: a shard is damaged"))
    first, last = chosen(journal.entries.values())
    assert (last.word, last.token, last.group) == ("failed", "bad", "jobs")
    assert last.who == "train.py ×4"
    assert "RuntimeError: a shard is damaged · step 4,0" in last.text
    assert "loss 2" in last.text
    assert first.place == last.place == ("job", "job-r")


def test_the_last_loss_is_that_of_the_log_where_the_probe_knows_none():
    frames = jobs.ranks(1, 20.0)
    loss = f.TRAINER_COLUMNS.index("loss") + 1
    for frame in frames:
        if isinstance(frame, f.Sample):
            for row in frame.t:
                row[loss] = None
            for row in frame.p:
                row.extend([None] * (1 + len(f.PROCESS_COLUMNS) - len(row)))
                row[f.PROCESS_COLUMNS.index("log_loss") + 1] = 0.875
    journal = journal_of(frames)
    view(journal, gone(frames, "killed by signal 9"))
    assert "loss 0.875" in chosen(journal.entries.values())[-1].text


def test_retries_that_follow_each_other_are_one_entry_with_their_number():
    frames = jobs.ranks(4, 20.0)
    last, journal = end(frames), Journal()
    text = "cuda:0 was full {}: cudaMalloc failed, the cache was emptied, and it was retried"
    events = []
    for second in (0, 1, 2, 3, 40):
        events.append(
            f.Event(400, "retry", last + second * 10**9, text.format("2 times"), {"count": 2})
        )
        view(journal, [*frames, *events])
    assert [one.text for one in chosen(journal.entries.values()) if one.word == "retry"] == [
        text.format("8 times in 3 s"),
        text.format("2 times"),
    ]
    view(
        journal, [*frames, *events, f.Event(401, "retry", last, text.format("once"), {"count": 1})]
    )
    assert words(journal).count("retry") == 3, "those of another allocator stand for themselves"


@pytest.mark.parametrize(
    ("reason", "stopped", "word", "text"),
    [
        ("exited: interrupted with Ctrl-C (KeyboardInterrupt)", {}, "stopped", "by Ctrl-C"),
        (f.NO_LAST_WORDS, {48201: "SIGTERM"}, "stopped", "by you, SIGTERM"),
        (f.NO_LAST_WORDS, {}, "ended", "without an error message: a signal, a crash"),
        ("killed by signal 9", {}, "killed", "by SIGKILL"),
        ("exited: the program has ended", {}, "ended", "step"),
        (
            "the probe is gone (it was removed); the process continues",
            {},
            "probe lost",
            "its probe was taken out",
        ),
    ],
)
def test_what_the_user_stopped_is_no_crash(reason, stopped, word, text):
    frames = jobs.ranks(4, 20.0)
    journal = journal_of(frames)
    view(journal, gone(frames, reason), stopped=stopped)
    last = chosen(journal.entries.values())[-1]
    assert last.word == word
    assert last.text.startswith(text)
    assert (last.token == "bad") == (word == "killed")


def test_the_rank_that_tells_the_cause_counts():
    frames = jobs.ranks(4, 20.0)
    frames = gone(frames, "exited: ValueError: labels", [301])
    journal = journal_of(gone(frames, f.NO_LAST_WORDS, [300, 302, 303]))
    assert chosen(journal.entries.values())[-1].text.startswith("ValueError: labels")


def test_events_are_told_once_and_a_gone_event_is_no_second_end():
    frames = jobs.ranks(2, 20.0)
    last = end(frames)
    events = [
        f.Event(0, "dropped", last, "12 samples"),
        f.Event(300, "stall", last, "Last step 31 s ago"),
        f.Event(300, "resumed", last + 1, "Steps go on after 60 s."),
        f.Event(301, "resumed", last + 2, "Steps go on after 60 s."),
        f.Event(400, "oom", last, "tried to allocate 2 GiB", {"state": "withdrawn"}),
        f.Event(1, "xid", last, "a memory error", {"xid": 48}),
    ]
    journal = journal_of([*frames, *events])
    view(journal, [*frames, *events])
    view(journal, [*frames, *events, f.Event(100, "gone", last + 10**9, "exited")])
    found = chosen(journal.entries.values())
    assert sorted(one.word for one in found if one.group != "jobs" or one.word == "resumed") == [
        "XID",
        "resumed",
        "samples lost",
        "survived",
    ]


def finding(title: str) -> Finding:
    return Finding(
        pitfall="num-workers",
        cause="input.wait",
        title=title,
        severity="warning",
        confidence="certain",
        evidence=(),
        where="rank 0",
    )


def test_a_finding_opens_and_closes():
    frames = jobs.ranks(2, 20.0)
    now = end(frames) / 1e9
    case = Case(1, finding("waits for its input"), "live", "job-r", now - 5, False, now)
    journal = journal_of(frames, [case])
    view(journal, frames, [case])
    view(journal, frames, [replace(case, past=True)])
    view(journal, frames, [replace(case, past=True)])
    found = [one for one in chosen(journal.entries.values()) if one.group == "findings"]
    assert [(one.word, one.token) for one in found] == [
        ("warning", "warn"),
        ("warning gone", "ok"),
    ]
    assert found[1].wall_seconds - found[0].wall_seconds == pytest.approx(5)
    assert found[0].place == ("finding", "num-workers", "rank 0")
    lines = event_lines(journal.of_job("job-r"), GLYPHS, 3, 60)
    assert "warning gone waits for its input" in "".join(text for text, _ in lines[0])


def test_a_gpu_that_is_lost_is_told_and_that_it_is_back():
    frames = jobs.ranks(2, 20.0)
    journal = journal_of(frames)
    device = next(frame for frame in frames if isinstance(frame, f.Def) and frame.gpu)
    why: list[int | str] = [device.id, "used_bytes", f.LOST, "fallen off the bus"]
    lost = [
        replace(
            frame,
            why=[why],
            g=[[row[0], None, *row[2:]] if row[0] == device.id else row for row in frame.g],
        )
        if isinstance(frame, f.Sample)
        else frame
        for frame in frames
    ]
    view(journal, lost)
    view(journal, lost)
    view(journal, frames)
    found = chosen(journal.entries.values(), "gpu")
    assert [(one.word, one.token) for one in found] == [("lost", "bad"), ("back", "ok")]
    assert found[0].text == "fallen off the bus"
    assert found[0].place == ("device", device.gpu.uuid)


def notice(seconds: float, text: str, **more) -> Notice:
    return Notice(seconds, "ok", text, **more)


def test_words_of_the_program_are_hidden_and_files_are_not(tmp_path):
    saved = notice(3.0, "snapshot", kind="file", path=tmp_path / "a.pickle", opens="snapshot")
    told = of_notices([notice(1.0, "copied"), saved])
    assert [one.text for one in chosen(told)] == ["snapshot"]
    assert [one.text for one in chosen(told, "program")] == ["copied"]
    assert chosen(told)[0].place == ("snapshot", tmp_path / "a.pickle")
    assert counts(told)[ALL] == 1
    assert (counts(told)["files"], counts(told)["program"]) == (1, 1)


def test_a_filter_looks_at_all_that_is_shown_and_the_newest_stay():
    many = [
        LogEntry(float(n), "jobs", "ended", "train.py", f"line {n}", "ok", str(n))
        for n in range(SHOWN + 5)
    ]
    shown = chosen(reversed(many))
    assert [shown[at].text for at in (0, -1)] == ["line 5", f"line {SHOWN + 4}"]
    assert [one.text for one in chosen(many, text="LINE 504")] == ["line 504"]
    assert len(chosen(many, until_seconds=2.0)) == 3


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("died without cleanup (SIGTERM, SIGKILL or a crash)", "died without cleanup …"),
        ("Hang: no step for 8 s: stuck at data.py:88", "Hang: no step for 8 s …"),
        ("no error", "no error"),
    ],
)
def test_a_text_that_is_cut_says_so_and_leaves_no_bracket_open(text, shown):
    assert Sentence(text, "text").draw(36, GLYPHS) == [(shown, "text")]


def test_a_text_of_a_short_and_a_long_part_uses_its_room():
    text = "Hang: rank 1 is stuck at data.py:31 in load; rank 0 waits for it at step.py:62 in main"
    ((shown, _),) = Sentence(text, "text").draw(72, GLYPHS)
    assert shown == "Hang: rank 1 is stuck at data.py:31 in load; rank 0 waits for it at …"
    bracket = "Hang: rank 1 is stuck at a line (data.py:31 of a very long name that goes on)"
    ((shown, _),) = Sentence(bracket, "text").draw(60, GLYPHS)
    assert shown == "Hang: rank 1 is stuck at a line …", "no bracket is left open"


def test_how_grave_a_line_is_needs_no_colour():
    signs = {
        token: row(LogEntry(0.0, "jobs", "w", "x", "t", token, "s"), GLYPHS).cells["sign"][0][0]
        for token in ("bad", "warn", "ok", "muted")
    }
    assert len(set(signs.values())) == 4


class Talks:
    """Stands for the runs of the Lab with a trainer that says these lines."""

    def __init__(self, lines: list[str]) -> None:
        self.stopped: dict[int, str] = {}
        self._lines = lines

    def new_output(self) -> list[tuple[str, str]]:
        return [("train.py", line) for line in self._lines]


def test_what_a_trainer_says_is_bounded_and_cannot_control_the_terminal():
    host = views.host_of(jobs.ranks(2, 20.0))
    happened = Happened()
    said = ["\x1b]0;title\x07\x1b[2Jepoch 1", "x" * 5000, *["step"] * KEPT_OUTPUT]
    assert happened.look(host, [], Talks(said[:2]))  # type: ignore[arg-type]
    first, long = happened.output
    assert "epoch 1" in first.text
    assert "\x1b" not in first.text
    assert "\x07" not in first.text
    assert len(long.text) <= OUTPUT_CHARS
    happened.look(host, [], Talks(said[2:]))  # type: ignore[arg-type]
    assert len(happened.output) == KEPT_OUTPUT


def test_the_time_has_its_seconds_also_where_the_date_stands_before_it():
    entry = LogEntry(3723.0, "jobs", "w", "x", "t", "ok", "s")
    for dated in (False, True):
        ((at, _),) = row(entry, GLYPHS, dated).cells["time"]
        assert at.endswith(":03")
        assert len(at) == columns([entry, replace(entry, wall_seconds=1e9)][: dated + 1])[0].width


def test_a_narrow_log_has_the_time_of_today_and_the_date_and_time_of_what_is_older():
    now = LogEntry(90_000.0 + 86_400.0, "jobs", "w", "a long name of a job ×8", "t", "ok", "s")
    old = replace(now, wall_seconds=3723.0)
    wide, narrow = columns([old, now], 120), columns([old, now], 80)
    assert (wide[0].width, narrow[0].width) == (15, 12)
    assert wide[3].width > narrow[2].width
    assert [column.key for column in narrow] == ["time", "sign", "who", "text"]
    texts = [
        row(replace(now, word=word), GLYPHS, begins=True).cells["text"].text
        for word in ("started", "warning")
    ]
    assert texts == ["started: t", "t"], "the sign says that it is a warning"
    ((today, _),) = row(now, GLYPHS, today=day(now)).cells["time"]
    ((before, _),) = row(old, GLYPHS, today=day(now)).cells["time"]
    assert (len(today), before) == (8, clock_text(old.wall_seconds, "%b %d %H:%M"))


def entry(at: float, group: str = "jobs", token: str = "text", **more) -> LogEntry:
    return LogEntry(at, group, "started", "train.py", "pid 7", token, f"s{at}{group}", **more)


def test_events_over_time_are_counted_by_kind_and_the_gravest_is_marked():
    now = 1_000_000.0
    found = [entry(now - 60), entry(now - 59), entry(now - 1, "gpu", "bad"), entry(now - 90_000)]
    what, lines = activity(found, now, found[0], GLYPHS, 80)
    assert what == "each column is 2 min, the highest has 2 · 1 older"
    shown = [styled.plain(line) for line in lines]
    assert [line.split()[0] for line in shown[:2]] == ["jobs", "GPUs"]
    assert " 2 " in shown[0]
    assert " 1 ▲" in shown[1]
    assert shown[0].index("█") == shown[2].index("▲"), "the axis marks the event of the cursor"
    assert all(styled.cells(line) <= 80 for line in lines)
    assert activity(found, now, None, GLYPHS, 40) == ("", []), "too narrow for columns"


def test_an_event_in_full_says_what_its_gpu_and_its_job_do_now():
    host = views.host_of(views.hung())
    lost = next(device for device in host.devices if device.definition.index == 5)
    found = entry(host.wall_seconds - 30, "gpu", "bad", place=("device", lost.key))
    text = [styled.plain(line) for line in details(found, Around(host), GLYPHS, 90, 40)]
    assert any(line.startswith("Now      lost: the device has fallen off") for line in text)
    assert any(line.startswith("Users    train.py of ada") for line in text)
    job = next(job for job in host.jobs if job.trainers)
    found = entry(host.wall_seconds - 30, job=job.key, place=("job", job.key))
    text = [styled.plain(line) for line in details(found, Around(host), GLYPHS, 90, 40)]
    assert any("Job      train.py ×7 · pid 48213-48219" in line for line in text)
    assert any(line.startswith("Now      step ") and "a step" in line for line in text)
    few = [styled.plain(line) for line in details(found, Around(host), GLYPHS, 90, 5)]
    assert len(few) <= 5
    assert not any(line.startswith("When") for line in few), "the list says it"


@pytest.mark.parametrize(
    ("pitfall", "who", "shown"),
    [("gpu-health", "GPU 3", 2), ("gpu-health", "GPU 5", 3), ("num-workers", "GPU 3", 3)],
)
def test_what_a_gpu_and_the_doctor_both_report_is_one_row(pitfall, who, shown):
    host = views.host_of(views.hung())
    at = host.wall_seconds - 30
    places = [("device", "GPU-3"), ("finding", pitfall, who), ("finding", "gpu-health", "GPU 3")]
    rows = [
        replace(entry(at, "gpu", "bad", place=places[0]), who="GPU 3"),
        replace(entry(at, "findings", "bad", place=places[1]), who=who),
        replace(entry(at + 600, "findings", "bad", place=places[2]), who="GPU 3"),
    ]
    assert (len(chosen(rows)), counts(rows)[ALL]) == (shown, shown)
    assert len(chosen(rows, "findings")) == counts(rows)["findings"] == 2, "none is lost there"


def test_what_the_doctor_says_now_belongs_to_the_rank_of_the_event():
    host = views.host_of(views.training())
    job = next(job for job in host.jobs if job.trainers)
    cases = [
        Case(n, replace(finding(f"about rank {n}"), where=f"rank {n}, GPU {n}"), "live", job.key)
        for n in (0, 5)
    ]
    event = replace(entry(host.wall_seconds, "probe", job=job.key), who="train.py rank 0")

    def said(height: int) -> list[str]:
        around = Around(host, cases)
        return [styled.plain(line) for line in details(event, around, GLYPHS, 60, height)]

    assert any("about rank 0" in line for line in said(40))
    assert not any("about rank 5" in line for line in said(40))
    for height in range(1, 20):
        assert said(height)[-1] != "Now in the Doctor", "no heading without a line below it"


def test_beside_a_finding_stands_what_else_the_doctor_finds_of_its_job():
    host = views.host_of(views.training())
    job = next(job for job in host.jobs if job.trainers)
    own, other = finding("waits for its input"), finding("hangs at train.py:34")
    cases = [
        Case(1, own, "live", job.key, past=True),
        Case(2, replace(other, where="rank 1"), "live", job.key),
    ]
    event = replace(
        entry(host.wall_seconds, "findings", job=job.key), place=("finding", own.pitfall, own.where)
    )
    said = [styled.plain(line) for line in beside_lines(event, Around(host, cases), GLYPHS, 60, 40)]
    assert any("hangs at train.py:34" in line for line in said)
    assert not any("No other finding" in line for line in said)
    alone = beside_lines(event, Around(host, cases[:1]), GLYPHS, 60, 40)
    assert "No other finding about it now." in [styled.plain(line) for line in alone]


def recorded(name: str) -> Journal:
    """What the log of a recording says at its end."""
    journal, store, last = Journal(), Store(), -1.0
    store.add_source("k", "label")
    for line in RecordingReader(REDACTED / name):
        store.apply("k", decode(line.line), line.rx)
        host = store.view().host
        if host is not None and (host.sampled_seconds or 0.0) >= last + 0.5:
            last = host.sampled_seconds or 0.0
            journal.look(host, (), {})
    return journal


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("h200-lab.gsr", ["started script-1", "ended script-1", "started script-2"]),
        (
            "h200x2-stall.gsr",
            ["started script-1 ×2", "ended script-1 ×2", "started script-2 ×2"],
        ),
    ],
)
def test_a_recorded_start_and_end_is_one_row_each(name: str, rows: list[str]):
    """A training is a process before its probe answers, and the driver lists it after its end."""
    found = sorted(recorded(name).of_group("jobs"), key=lambda one: one.wall_seconds)
    assert [f"{one.word} {one.who}" for one in found] == rows


def test_the_events_over_time_begin_with_the_first():
    entries = [
        LogEntry(1000.0 + at, "jobs", "started", "train.py", "", "text", str(at)) for at in (0, 200)
    ]
    what, lines = activity(entries, 1300.0, None, GLYPHS, 120)
    assert what.startswith("each column is 5 s")
    marks = styled.plain(lines[0])[10:]
    assert next(at for at, cell in enumerate(marks) if cell not in "─ ") < 40
