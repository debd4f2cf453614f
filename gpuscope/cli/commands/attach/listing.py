"""List what can be attached to: ``gpuscope attach`` without a target.

It looks at this machine, and says what each process needs before a probe can be in it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from ....exit_status import ExitStatus
from ....text import width
from ....text.units import DASH
from ....wire.clean import clean
from ... import output

MOST_COMMAND, LEAST_COMMAND, LEAST_NEEDS = 48, 14, 18
GAP = 2


def run(args: argparse.Namespace) -> int:
    """0: listed; 3: nothing was found, and not all could be asked."""
    from ...local_look import look
    from ..ps import document as ps_document

    host = look(timeout=args.timeout).host
    problems = ps_document.find_problems(host)
    document = ps_document.document(host, problems)
    rows = _rows(document)
    if args.json:
        keys = ("host", "problems", "unknown")
        print(output.dump({"attachable": rows, **{key: document[key] for key in keys}}))
    else:
        print("\n".join(text(document["host"], rows, problems, _columns())))
    return ExitStatus.OK if rows or not problems else ExitStatus.UNCHECKED


def _columns() -> int:
    """Return the width of the terminal; 0 if the output is no terminal, and nothing has to fit."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def _rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the processes that use a GPU or have a probe, and those with torch in them.

    The helper processes of a trainer are left out.
    """
    from ....agent.attachable import listing

    known = {process["pid"]: process for process in document["processes"]}
    listed = {row["pid"]: row for row in listing(",".join(map(str, known)))["processes"]}
    for pid, row in listed.items():
        if pid not in known and row["role"] == "trainer":
            known[pid] = {**row, "trainer": None, "devices": []}
    launchers = {rank: row["pid"] for row in listed.values() for rank in row.get("launches") or ()}
    return [
        _row(process, listed.get(pid, {}), launchers.get(pid)) for pid, process in known.items()
    ]


def _row(process: dict[str, Any], listed: dict[str, Any], launcher: int | None) -> dict[str, Any]:
    trainer = process["trainer"]
    method, needs = (
        ("", "nothing: it has a probe") if trainer is not None else _needs(process["pid"])
    )
    parent = listed.get("sibling_of")
    return {
        "pid": process["pid"],
        "user": process["user"],
        "command": process["command"],
        "mine": process["mine"],
        "devices": [use["index"] for use in process["devices"] if use["index"] is not None],
        "job": trainer["job"]
        if trainer is not None
        else listed.get("job") or (f"children of {parent}" if parent else None),
        "rank": trainer["rank"] if trainer is not None else listed.get("rank"),
        "launcher": launcher,
        "probe": trainer is not None,
        "method": method or None,
        "needs": needs,
        "next": f"gpuscope attach {process['pid']}" + (" --inject" if method else ""),
    }


def _needs(pid: int) -> tuple[str, str]:
    """The way in, "" for none, and what it would take, by the ladder."""
    from ....attach.attach_options import look

    ladder = look(pid)
    best = ladder.best
    if best.name in ("pep768", "ptrace"):
        return best.name, f"your consent ({best.name})"
    closed = next((rung for rung in ladder.rungs if not rung.open and rung.why), best)
    return "", clean(closed.why, 200)


# ── text ──


def text(
    host: str, rows: Sequence[dict[str, Any]], problems: Sequence[dict[str, Any]], columns: int
) -> list[str]:
    """Return the list in lines of at most ``columns`` cells; 0 means any length.

    The ranks of a job follow a heading line for the job.
    """
    lines = [clean(host, 100), ""]
    if rows:
        lines += _table(rows, columns)
        lines += [
            "",
            *_wrapped(
                "Look inside: ",
                "gpuscope attach PID --inject    (asks first, and shows the overhead)",
                columns,
            ),
        ]
    else:
        lines.append("No process here uses a GPU, has torch loaded, or has a probe.")
    lines += _wrapped(
        "Other hosts: ",
        "gpuscope attach USER@HOST    (needs only Python 3.8 or newer there)",
        columns,
    )
    for row in problems:
        lines += _wrapped(f"{DASH} ", row["reason"], columns)
    return lines


def _table(rows: Sequence[dict[str, Any]], columns: int) -> list[str]:
    """Rows of a job together, its ranks in their order; what somebody else runs comes last."""
    jobs: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        jobs.setdefault(row["job"] or f"pid {row['pid']}", []).append(row)
    groups = sorted(jobs.values(), key=lambda g: (not g[0]["mine"], min(row["pid"] for row in g)))
    ordered = [
        row
        for g in groups
        for row in sorted(g, key=lambda r: (r["rank"] is None, r["rank"] or 0, r["pid"]))
    ]
    gpus = any(row["devices"] for row in rows)
    head = ("PID", "USER", *(("GPU",) if gpus else ()), "RANK", "COMMAND")
    cells = [_cells(row, gpus) for row in ordered]
    fixed = sum(
        max(width.cells(one[at]) for one in [head, *cells]) + GAP for at in range(len(head) - 1)
    )
    longest = max(width.cells(row["needs"]) for row in rows)
    most = MOST_COMMAND
    if columns:
        most = max(
            LEAST_COMMAND,
            min(most, columns - fixed - GAP - min(longest, max(LEAST_NEEDS, columns // 3))),
        )
    table = output.table(
        [
            (*head, "NEEDS"),
            *(
                (*one[:-1], _short(one[-1], most), row["needs"])
                for one, row in zip(cells, ordered, strict=True)
            ),
        ],
        right=(0, len(head) - 2),
    )
    lines = [table[0]]
    at = table[0].index("NEEDS")
    for line, row in zip(table[1:], ordered, strict=True):
        group = jobs[row["job"] or f"pid {row['pid']}"]
        if len(group) > 1 and row is min(group, key=ordered.index):
            lines += _wrapped("", _title(group), columns)
        # Widths are in terminal columns, not characters, because the text before NEEDS may contain
        # wide ones.
        start = line[: len(line) - len(row["needs"])].rstrip() + " "
        start += " " * (at - width.cells(start))
        lines += _wrapped(start, row["needs"], columns)
    return lines


def _cells(row: dict[str, Any], gpus: bool) -> tuple[str, ...]:
    rank = DASH if row["rank"] is None else str(row["rank"])
    devices = (",".join(map(str, row["devices"])) or DASH,) if gpus else ()
    return str(row["pid"]), row["user"] or DASH, *devices, rank, clean(row["command"] or DASH, 200)


def _short(command: str, most: int) -> str:
    """Return a command cut to a number of cells.

    If the whole command does not fit, the directory of its interpreter is left out first.
    """
    if width.cells(command) <= most:
        return command
    first, blank, rest = command.partition(" ")
    return width.cut(first.rpartition("/")[2] + blank + rest, most)


def _title(group: Sequence[dict[str, Any]]) -> str:
    """A job's own line, with what leads into all of its ranks."""
    launchers = {row["launcher"] for row in group}
    launcher = launchers.pop() if len(launchers) == 1 else None
    waits = [row for row in group if row["method"]]
    title = f"job {clean(group[0]['job'], 80)}, {len(group)} ranks"
    return (
        f"{title}: gpuscope attach {launcher} --inject" if launcher is not None and waits else title
    )


def _wrapped(start: str, words: str, columns: int) -> Iterable[str]:
    """``start``, and the words behind it; what does not fit goes below them."""
    indent = width.cells(start)
    if not columns or indent + width.cells(words) <= columns:
        return [start + words]
    parts = width.wrap(words, max(LEAST_NEEDS, columns - indent)) or [""]
    return [start + parts[0], *(" " * indent + part for part in parts[1:])]
