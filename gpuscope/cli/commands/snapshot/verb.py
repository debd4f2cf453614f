"""``gpuscope snapshot FILE``: read an allocator snapshot from a file, or compare two.

``gpuscope snapshot PID`` takes a new one.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....exit_status import ExitStatus
from ....missing_file import MissingFile
from ....snapshot.limits import FLOOR_BYTES
from ....text.units import percent_text
from ....wire.clean import clean
from ....wire.frames import NOT_INITIALISED, NOT_SUPPORTED, Unknown
from ... import output, remote
from ...args import add_theme, flag, option, seconds_between, size_of_at_least, whole_between
from ...progress_line import ProgressLine
from . import live as snapshot_live
from . import what_if as snapshot_what_if

if TYPE_CHECKING:
    from ....snapshot.model import At, Between, Diff, SnapshotDevice, Stacks, Summary
    from ....snapshot.reader import Reading, SnapshotError
    from ....text.styled import Line

MIN_WIDTH, MAX_WIDTH = 60, 160
TOP, MAX_TOP = 10, 200
MAX_SECONDS = 86400.0
NO_HISTORY = Unknown(
    NOT_INITIALISED, "the history of allocations was off when the snapshot was taken"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target",
        metavar="PID|USER@HOST:PID|FILE",
        help="a trainer to take a snapshot of, or a snapshot to read",
    )
    parser.add_argument(
        "second",
        nargs="?",
        metavar="FILE2",
        help="a later snapshot: show what grew since FILE, by stack",
    )
    flag(parser, "--json", "a JSON document instead of text")
    flag(parser, "--text", "print text, on a terminal too")
    group = parser.add_argument_group("for a FILE")
    add_theme(group)
    option(group, "--device N", "only cuda:N", whole_between(0, 9999))
    option(
        group,
        "--top N",
        f"stacks in each list (default {TOP})",
        whole_between(1, MAX_TOP),
        default=TOP,
    )
    moment = (
        "show what was allocated at this moment: peak, oom, start, end, 50%%, 12.5s or the number "
        "of an entry; A..B: what was allocated after A and is still allocated at B"
    )
    option(group, "--at MOMENT", moment)
    option(
        group,
        "--memory-limit SIZE",
        "how much memory reading the file may take, such as 4GiB (default: depends on the "
        "file's size, at most half of the free memory)",
        size_of_at_least(FLOOR_BYTES),
    )
    option(
        group,
        "--timeout SECONDS",
        "stop reading after this long (default: depends on the file's size)",
        seconds_between(1, MAX_SECONDS),
    )
    snapshot_what_if.add_arguments(group)
    snapshot_live.add_arguments(parser)
    remote.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    live = args.second is None and (
        snapshot_live.is_pid(args.target) or remote.is_remote(args, args.target)
    )
    snapshot_what_if.check_options(args, live)
    if live:
        return snapshot_live.run_live(args)
    _refuse_options_of_a_pid(args)
    if _on_screen(args):
        from ....tui.app.file_app import show_snapshot

        return show_snapshot(Path(args.target), args.theme)
    from ....snapshot.reader import SnapshotError

    newest = args.second or args.target
    try:
        return _read(args, newest)
    except SnapshotError as error:
        return _fail(args, error)


def _refuse_options_of_a_pid(args: argparse.Namespace) -> None:
    given = {
        "-o": args.output is not None,
        "--history": args.history is not None,
        "--trial": args.trial,
        "--force": args.force,
    }
    for name, is_given in given.items():
        if is_given:
            raise UsageError(
                f"{name} is for a trainer, not for a file",
                next="gpuscope ps    lists the trainers with their pids",
            )


def _on_screen(args: argparse.Namespace) -> bool:
    """Tell whether one file is shown on the screen.

    It is if the output is a terminal that can show it and no option asks for text.
    """
    wants_text = (
        args.text
        or args.json
        or args.second
        or args.at
        or args.device is not None
        or args.memory_limit
    )
    wants_text = wants_text or args.what_if is not None
    if wants_text or args.timeout or args.top != TOP or not os.path.isfile(args.target):
        return False
    from ....tui.app.launch import why_unusable

    return not why_unusable(sys.stdin, sys.stdout, sys.stderr)


def _read(args: argparse.Namespace, path: str) -> int:
    from ....snapshot.limits import for_files
    from ....snapshot.reader import open_snapshot

    limit, seconds = for_files(*filter(None, (args.target, args.second)))
    limit, seconds = args.memory_limit or limit, args.timeout or seconds
    line = ProgressLine(sys.stderr, not args.json)

    def show(share: float) -> None:
        line.draw(f"reading {percent_text(share)}")

    on_progress = show if line.live else None
    try:
        with open_snapshot(path, limit, seconds, args.top, on_progress, _prepare) as reading:
            diff = reading.diff(args.target, args.top) if args.second else None
            devices = [one for one in reading.summary.devices if args.device in (None, one.device)]
            if args.device is not None and not devices:
                known = ", ".join(str(one.device) for one in reading.summary.devices) or "none"
                raise UsageError(f"no cuda:{args.device} in this snapshot (there are: {known})")
            moments = _moments(args, reading, devices)
            replayed = (
                snapshot_what_if.ask(args, reading, devices) if args.what_if is not None else None
            )
    finally:
        line.clear()
    summary = reading.summary
    if args.json:
        print(output.dump(document(summary, devices, moments, diff, replayed)))
    elif replayed is not None:
        output.print_lines(_what_if(summary, replayed))
    else:
        output.print_lines(_report(args, summary, moments, diff))
    return _exit_code(summary, replayed)


def _exit_code(summary: Summary, replayed: list[snapshot_what_if.Answer] | None) -> int:
    read = ExitStatus.OK if summary.complete else ExitStatus.WARNINGS
    return read if replayed is None else max(read, snapshot_what_if.exit_code(replayed))


def _prepare(reading: Reading) -> None:
    """While the child reads: what is needed to draw."""
    from ....snapshot import report  # noqa: F401


def _moments(
    args: argparse.Namespace, reading: Reading, devices: list[SnapshotDevice]
) -> list[At | Between]:
    """Return what ``--at`` asks for, of every device that has a trace.

    If no device has one, the reader's error is raised.
    """
    if args.at is None:
        return []
    first, dots, last = args.at.partition("..")
    chosen = (
        [one.device for one in devices if one.trace is not None]
        or [one.device for one in devices][:1]
        or [0]
    )
    if dots:
        return [reading.between(device, first, last, args.top) for device in chosen]
    return [reading.at(device, args.at, args.top) for device in chosen]


def _fail(args: argparse.Namespace, error: SnapshotError) -> int:
    """Says it on standard error, and in the document where one was asked for."""
    if error.code == "usage":
        raise UsageError(error.what) from error
    if args.json:
        problems = [output.problem(None, "unchecked", error.what)]
        unknowns = output.Unknowns()
        unknowns.add("devices", Unknown(error.code, error.what))
        refused = {"path": clean(args.second or args.target), "devices": None, "events": None}
        ending = {"problems": problems, "unknown": unknowns.rows, "exit_code": ExitStatus.UNCHECKED}
        print(output.dump({**refused, **ending}))
    if error.code == "missing":
        raise MissingFile(args.second or args.target) from error
    name = clean(os.path.basename(args.second or args.target))
    print(f"gpuscope snapshot: {name}: {error.what}", file=sys.stderr)
    if error.code == "foreign" and "gpuscope" not in error.what:
        doctor = f"gpuscope doctor {shlex.quote(clean(args.second or args.target))}"
        print(
            f"Next: {doctor}    reads a log, a script or a recording;    "
            "gpuscope snapshot PID    takes a snapshot",
            file=sys.stderr,
        )
    return ExitStatus.UNCHECKED


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def _report(
    args: argparse.Namespace, summary: Summary, moments: list[At | Between], diff: Diff | None
) -> list[Line]:
    from ....snapshot import diff_report, report
    from ....snapshot.model import At
    from ....snapshot.report_pieces import note_lines

    glyphs = output.glyphs()
    width = output.page_width(MIN_WIDTH, MAX_WIDTH)
    if diff is not None:
        return [
            *diff_report.diff_lines(diff, width, glyphs, args.device),
            *note_lines(summary.notes),
        ]
    if moments:
        lines = report.header(summary, glyphs)
        for one in moments:
            lines += [[], [(f"cuda:{one.device}", "title")]]
            lines += (
                report.at_lines(one, width, glyphs)
                if isinstance(one, At)
                else report.between_lines(one, width, glyphs)
            )
        return lines
    doctor = f"gpuscope doctor {shlex.quote(args.target)}"
    following: Line = [("Next: ", "muted"), (doctor, "accent")]
    following += [("    what is wrong in it, and the fix", "muted")]
    return [*report.summary_lines(summary, width, glyphs, args.device), [], following]


def _what_if(summary: Summary, replayed: list[snapshot_what_if.Answer]) -> list[Line]:
    from ....snapshot import report
    from ....snapshot.report_pieces import note_lines

    glyphs = output.glyphs()
    found = snapshot_what_if.lines(replayed, output.page_width(MIN_WIDTH, MAX_WIDTH))
    return [*report.header(summary, glyphs), [], *found, *note_lines(summary.notes)]


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────


def document(
    summary: Summary,
    devices: list[SnapshotDevice],
    moments: list[At | Between],
    diff: Diff | None,
    replayed: list[snapshot_what_if.Answer] | None = None,
) -> dict[str, Any]:
    """The JSON document.

    Bytes are integers. ``events`` are the marks of all traces, in order for each device.
    """
    from ....snapshot.model import At

    unknowns = output.Unknowns()
    taken = None if summary.taken_us is None else summary.taken_us / 1e6
    result: dict[str, Any] = {
        "path": summary.path,
        "file_bytes": summary.file_bytes,
        "complete": summary.complete,
        "newest_entry_time": unknowns.value("newest_entry_time", taken, NO_HISTORY),
        "settings": summary.settings,
        "record": summary.record,
        "devices": [
            _device(unknowns, f"devices[{number}]", one) for number, one in enumerate(devices)
        ],
        "events": [
            {"device": one.device, **asdict(mark)}
            for one in devices
            if one.trace is not None
            for mark in one.trace.marks
        ],
    }
    states = [one for one in moments if isinstance(one, At)]
    ranges = [one for one in moments if not isinstance(one, At)]
    if states:
        result["at"] = [
            _moment(unknowns, f"at[{number}]", one) for number, one in enumerate(states)
        ]
    if ranges:
        result["between"] = [
            {
                **_bare(asdict(one)),
                "top_stacks": _rows(one.stacks),
                "other_stacks": _rest(one.stacks),
            }
            for one in ranges
        ]
    if diff is not None:
        result["diff"] = asdict(diff)
    if replayed is not None:
        result["what_if"] = snapshot_what_if.document(replayed, unknowns)
    result["notes"] = [asdict(note) for note in summary.notes]
    result["unknown"] = unknowns.rows
    result["exit_code"] = _exit_code(summary, replayed)
    return result


def _device(unknowns: output.Unknowns, path: str, one: SnapshotDevice) -> dict[str, Any]:
    totals, fragmentation = asdict(one.totals), asdict(one.fragmentation)
    full = Unknown(NOT_SUPPORTED, "nothing is free")
    for key in ("percent", "largest_free_address"):
        fragmentation[key] = unknowns.value(f"{path}.fragmentation.{key}", fragmentation[key], full)
    for key in ("inactive_split_bytes", "page_bound_bytes", "releasable_bytes"):
        fragmentation[key] = totals[key]
    return {
        "device": one.device,
        **totals,
        "fragmentation": fragmentation,
        "top_stacks": _rows(one.stacks),
        "other_stacks": _rest(one.stacks),
        "block_sizes": [asdict(bucket) for bucket in one.sizes],
        "pools": [asdict(pool) for pool in one.pools],
        "segments": [
            {key: value for key, value in asdict(segment).items() if key not in ("live", "pending")}
            for segment in one.segments
        ],
        "trace": _trace(unknowns, f"{path}.trace", one),
        "notes": [asdict(note) for note in one.notes],
    }


def _trace(unknowns: output.Unknowns, path: str, one: SnapshotDevice) -> dict[str, Any] | None:
    trace = one.trace
    if trace is None:
        unknowns.add(path, NO_HISTORY)
        return None
    why = Unknown(
        NOT_SUPPORTED,
        "; ".join(note.text for note in one.notes if note.code == "level") or "not recorded",
    )
    return {
        "entries": trace.entries,
        "first_us": unknowns.value(f"{path}.first_us", trace.first_us, why),
        "last_us": unknowns.value(f"{path}.last_us", trace.last_us, why),
        "actions": trace.actions,
        "before_bytes": unknowns.value(f"{path}.before_bytes", trace.before_bytes, why),
        "timeline": asdict(trace.timeline),
        "peak": None if trace.peak is None else _moment(unknowns, f"{path}.peak", trace.peak),
    }


def _moment(unknowns: output.Unknowns, path: str, at: At) -> dict[str, Any]:
    why = Unknown(NOT_SUPPORTED, "the level of this trace's lines is unknown")
    found = _bare(asdict(at))
    for key in ("time_us", "allocated_bytes", "active_bytes", "reserved_bytes"):
        found[key] = unknowns.value(f"{path}.{key}", found[key], why)
    return {**found, "top_stacks": _rows(at.stacks), "other_stacks": _rest(at.stacks)}


def _bare(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in found.items() if key != "stacks"}


def _rows(stacks: Stacks) -> list[dict[str, Any]]:
    return [asdict(row) for row in stacks.rows]


def _rest(stacks: Stacks) -> dict[str, int]:
    """Return the sums of what the rows leave out, and of what has no recorded stack."""
    return {key: value for key, value in asdict(stacks).items() if key != "rows"}
