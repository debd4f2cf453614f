"""Attach to all ranks of a launcher.

A launcher (torchrun, accelerate, mp.spawn) starts trainers and does not train itself, so its pid
stands for its ranks. This module makes one question for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....text.numbers import whole
from ....wire.clean import clean

MAX_ROWS = 512


@dataclass(frozen=True)
class Launched:
    """The ranks that a launcher has started, as the agent lists processes; lowest rank first."""

    pid: int
    command: str
    ranks: tuple[Mapping[str, Any], ...]

    def none_yet(self, where: str = "") -> str:
        """Why nothing can be done."""
        host = f" on {where}" if where else ""
        return (
            f"pid {self.pid}{host} ({self.command}) is a launcher: it starts trainers but does "
            "not train, and none of its ranks has torch in it yet.\n"
            "Next: try again in a moment; gpuscope attach    lists what is there"
        )

    def question(
        self,
        facts: Sequence[Mapping[str, Any]],
        waiting: Sequence[Mapping[str, Any]],
        where: str = "",
    ) -> str:
        """``facts``: the consents of those ``waiting`` for a probe, in the same order."""
        host = f" on {where}" if where else ""
        several = len(waiting) != 1
        ranks = f"its {len(waiting)} ranks, one after another" if several else "its rank"
        lines = [
            f"pid {self.pid}{host} ({self.command}) is a launcher: it starts trainers but does "
            "not train.",
            f"Attach gpuscope's probe to {ranks}?",
            *(
                f"  {rank_name(row)}: pid {row['pid']} "
                f"({clean(str(fact.get('command', '?')), 120)}, "
                f"{clean(str(fact.get('user', '?')), 40)})"
                for row, fact in zip(waiting, facts, strict=True)
            ),
        ]
        listening = len(self.ranks) - len(waiting)
        if listening:
            lines.append(
                f"  in {'one more' if listening == 1 else f'{listening} more'} a probe listens "
                "already"
            )
        for method in sorted({str(fact.get("method")) for fact in facts}):
            fact = next(one for one in facts if str(one.get("method")) == method)
            lines.append(
                f"Method: {clean(method, 20)}. It {clean(str(fact.get('effect', '?')), 300)}"
            )
            lines.append(f"Overhead, of each: {clean(str(fact.get('price', '?')), 300)}")
        lines.append(f"Undo: {clean(str(facts[0].get('undo', '?')), 300)}")
        lines.append(f"The launcher itself: gpuscope attach {self.pid} --inject --this-pid")
        return "\n".join(lines)


def rank_name(row: Mapping[str, Any]) -> str:
    """``rank 3``, or ``rank ?`` where its environment does not say."""
    rank = row.get("rank")
    return f"rank {rank}" if isinstance(rank, int) else "rank ?"


def here(pid: int) -> Launched | None:
    """Return what the process has launched on this machine; None if it is no launcher."""
    from ....agent.attachable import listing

    return of(listing("", redact=False), pid)


def of(answer: Mapping[str, Any], pid: int) -> Launched | None:
    """The same from an agent's list, which is not to be trusted."""
    launcher = row_of(answer, pid)
    if launcher is None or launcher.get("role") != "launcher":
        return None
    wanted = launched_by(launcher)
    ranks = [
        row
        for row in rows_of(answer)
        if whole(row.get("pid")) in wanted and whole(row.get("start")) is not None
    ]
    ranks.sort(
        key=lambda row: (row["rank"] if whole(row.get("rank")) is not None else 1 << 30, row["pid"])
    )
    return Launched(pid, clean(str(launcher.get("command") or "?"), 120), tuple(ranks))


def rows_of(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of an agent's list of processes."""
    rows = answer.get("processes")
    listed = rows[:MAX_ROWS] if isinstance(rows, list) else []
    return [row for row in listed if isinstance(row, Mapping)]


def row_of(answer: Mapping[str, Any], pid: int) -> Mapping[str, Any] | None:
    """Return an answer's row for a process, None where it has none."""
    return next((row for row in rows_of(answer) if whole(row.get("pid")) == pid), None)


def launched_by(row: Mapping[str, Any] | None) -> set[int]:
    """Return the pids of the ranks that a launcher says it has started."""
    launched = row.get("launches") if row is not None else None
    found = launched[:MAX_ROWS] if isinstance(launched, list) else []
    return {pid for pid in map(whole, found) if pid is not None}
