"""Write what ``gpuscope ps`` prints for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ....model.device_state import HANGS, OF_TRAININGS
from ....model.stalls import is_late
from ....model.step_parts import LEAST_SHARE
from ....text import width
from ....text.process_name import short_script, shown_command
from ....text.ranges import ranges_text
from ....text.units import DASH, age_text, bytes_text, percent_text
from ....wire.columns import rewrite_sizes
from ....wire.frames import LOST
from ... import output
from ...output import gib, number, percent, seconds

OFTEN_UNKNOWN = ("GPU", "USED", "UTIL", "RANK", "ALLOCATED", "RESERVED GiB")
"""The columns that are left out where no process has them: on a host without a GPU, say."""
NUMBERS = ("PID", "USED", "UTIL", "STEP", "STEP TIME", "ALLOCATED", "RESERVED GiB")


def text(result: Mapping[str, Any]) -> str:
    """The same for people: a line per process, the ranks of a job under its name."""
    lines = [result["host"]]
    if result["processes"]:
        lines += ["", *_table(result["processes"])]
    notes = dict.fromkeys(
        f"{where}{': ' if where else ''}{reason}"
        for _, where, reason in output.grouped_problems(result["problems"])
    )
    for row in result["unknown"]:
        listed = row["path"] == "processes" or row["path"].endswith("].processes")
        if listed and row["code"] != LOST:  # a GPU that is lost has no memory to own
            notes.setdefault(f"Why some GPU memory has no owner here: {row['reason']}")
        elif row["path"].endswith(".sm_percent"):
            notes.setdefault(f"Utilisation per process: {row['reason']}")
    if not result["processes"]:
        lines.append(
            "No process here uses a GPU, and no trainer has a probe."
            if not notes
            else "No GPU process is known, and no trainer has a probe."
        )
        lines.append("To see inside a trainer: gpuscope run train.py")
    told = [part for note in notes for part in output.on_terminal(f"{DASH} {note}")]
    return "\n".join([*lines, "", *told] if notes else lines)


def _table(processes: list[dict[str, Any]]) -> list[str]:
    head = (
        "PID",
        "USER",
        "GPU",
        "USED",
        "UTIL",
        "RANK",
        "STEP",
        "STEP TIME",
        "ALLOCATED",
        "RESERVED GiB",
        "COMMAND",
    )
    rows, jobs = [head], []
    for process in processes:
        trainer = process["trainer"] or {}
        jobs.append(trainer.get("job"))
        world = trainer.get("world_size")
        rank = trainer.get("rank")
        used = [device["used_bytes"] for device in process["devices"]]
        rows.append(
            (
                str(process["pid"]),
                process["user"] or DASH,
                ",".join(str(device["index"]) for device in process["devices"]) or DASH,
                gib(sum(used)) if used and None not in used else DASH,
                _sm(process["devices"]),
                DASH if rank is None else f"{rank}/{world}" if world else str(rank),
                number(trainer.get("step")),
                "no step" if has_stopped(trainer) else seconds(trainer.get("step_seconds")),
                gib(trainer.get("allocated_bytes")),
                gib(trainer.get("reserved_bytes")),
                shown_command(process["command"] or DASH),
            )
        )
    first, *others = _fitting(rows)
    lines, job = [first], None
    for line, own, process in zip(others, jobs, processes, strict=True):
        if own != job:
            lines.append(_heading(own, jobs.count(own), process["trainer"]) if own else "no job")
            job = own
        notes = [*_states(process["devices"]), *_notes(process["trainer"] or {})]
        notes = notes if process["trainer"] else []
        lost = process["loss_not_finite"]
        for note in [lost, *notes] if lost else notes:
            line = "\n".join([line, *output.on_terminal(f"{' ' * 10}{note}")])
        lines.append(line)
    return lines


def _fitting(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of the table, without what no process has; the command gets what is left."""
    kept = [
        at
        for at, head in enumerate(rows[0])
        if head not in OFTEN_UNKNOWN or any(row[at] != DASH for row in rows[1:])
    ]
    to_the_right = [at for at, old in enumerate(kept) if rows[0][old] in NUMBERS]
    left = output.table([[row[at] for at in kept[:-1]] for row in rows], to_the_right)
    taken = max(map(width.cells, left))
    columns = output.terminal_width()
    room = 120 if columns is None else max(20, columns - taken - 2)
    return [
        f"{width.pad(line, taken)}  {width.cut(row[-1], room)}"
        for line, row in zip(left, rows, strict=True)
    ]


def _heading(job: str, count: int, trainer: Mapping[str, Any]) -> str:
    """Return the line above a job's processes: the script that people know it by, then its key."""
    name = short_script(trainer.get("script"))
    return f"{name} ×{count}, job {job}" if count > 1 else f"{name}, job {job}"


def has_stopped(trainer: Mapping[str, Any]) -> bool:
    """Whether its step time is of the past, as :func:`gpuscope.model.pace.has_stopped` says."""
    late = is_late(trainer.get("step_age_seconds"), trainer.get("step_seconds"))
    return bool(trainer.get("stall_at")) or late


def _sm(devices: list[dict[str, Any]]) -> str:
    """The largest share of a device that the process keeps busy."""
    known = [device["sm_percent"] for device in devices if device["sm_percent"] is not None]
    return percent(max(known)) if known else DASH


def _states(devices: list[dict[str, Any]]) -> list[str]:
    """Return what is wrong with the training on its devices, unless its place in the code says it.

    That is the state of these devices, as all surfaces tell it.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for device in devices:
        state = device["state"]
        if state["word"] in OF_TRAININGS - HANGS:
            found.setdefault((state["word"], state["reason"]), []).append(device["index"])
    return [
        f"{word} on GPU {ranges_text(indices)}: {reason}"
        for (word, reason), indices in found.items()
    ]


def _notes(trainer: Mapping[str, Any]) -> list[str]:
    """Return the lines below a trainer's row, as far as their values are known.

    They say which phase it is in, how its step time divides, and that it evaluates.
    """
    lines = []
    if has_stopped(trainer):
        age = trainer.get("step_age_seconds")
        told = [trainer.get("stands") or "", f"no step for {age_text(age)}" if age else ""]
        lines.append(", ".join(part for part in told if part))
    parts = trainer.get("where_time_goes")
    if parts is not None and not has_stopped(trainer):
        shares = [
            f"{row['row']} {percent_text(row['share'])}"
            for row in parts["rows"]
            if row["share"] >= LEAST_SHARE
        ]
        lines.append(f"{parts['of']}, {parts['basis']}: " + " · ".join(shares))
    if trainer.get("step_source") not in (None, "optimizer steps"):
        lines.append(f"its steps are {trainer['step_source']}")
    named = [
        one["other_models"] for one in trainer.get("allocators", ()) if one.get("other_models")
    ]
    if named:
        others = "; ".join(rewrite_sizes(text, bytes_text) for text in named)
        lines.append(f"other models, which no optimizer trains: {others}")
    if trainer.get("phase") not in (None, "train"):
        lines.append(f"phase: {trainer['phase']}")
    return lines
