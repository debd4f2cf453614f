"""Keep every run of the Lab in a ledger, an SQLite file in the user's data directory.

Several processes may write at once, and one that is killed loses nothing that was written before. A
file that is damaged, belongs to another program, or has another format is never
changed: :class:`LedgerError` says what it is and what to do. Only the standard library is needed.
"""

from __future__ import annotations

import json
import os
import platform
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import paths
from ..text.units import count_text
from . import ledger_file
from .config import ConfigError, LabConfig
from .ledger_file import LedgerError, bounded

__all__ = ["Entry", "LedgerError", "RunLedger", "default_path"]

PATH_VARIABLE = "GPUSCOPE_LEDGER"
MAX_DOCUMENT_CHARS = 256 * 1024
MAX_NAME_CHARS = 200
_DRIVER_FILE = Path("/proc/driver/nvidia/version")


def default_path() -> Path:
    """Return ``$GPUSCOPE_LEDGER``, or ``lab.sqlite`` in the user's data directory."""
    named = os.environ.get(PATH_VARIABLE, "")
    if named:
        return Path(named)
    return paths.data_folder() / "lab.sqlite"


@dataclass(frozen=True, slots=True)
class Entry:
    """One run in the ledger.

    ``document`` is what the run reported at its end (the keys of ``metrics.document``); strings in
    it are safe to show. ``config`` is None if no toggles are known, as for a user's own trainer.
    """

    id: int
    at: float  # seconds since the epoch, when it was added
    source: str  # "lab", "sweep", "claims", "recording"
    label: str
    group: str
    repeat: int
    config: LabConfig | None
    device: str | None  # cpu or cuda
    device_name: str | None
    torch_version: str | None
    environment: dict[str, Any] = field(default_factory=dict)
    document: dict[str, Any] = field(default_factory=dict)
    cell: str = ""
    """Which configuration of its group this is; "" outside a sweep."""
    problem: str = ""
    """Why the document could not be read, where it could not."""

    @property
    def name(self) -> str:
        """The name by which texts refer to it."""
        return self.label or (f"run {self.id}" if self.id else "recording")

    @property
    def failure(self) -> str:
        """What ended it early and why, in words; "" if nothing did."""
        error = self.document.get("error")
        if not isinstance(error, dict):
            return ""
        what, why = (str(error.get(key) or "") for key in ("what", "why"))
        return ": ".join(word for word in (what.rstrip("."), why) if word) or "it failed"

    @property
    def cut_short(self) -> str:
        """How it ended before all of its steps, as ``was aborted after 12 of 100 steps``.

        It is "" where it did not: a run for which no number of steps was asked ends when somebody
        stops it, and is whole once its speed was measured.
        """
        steps = self.document.get("steps")
        after = (
            count_text(steps, "step") if isinstance(steps, int) else "an unknown number of steps"
        )
        if self.failure:
            return f"failed after {after}"
        if self.config is None or not isinstance(steps, int):
            return ""
        asked = self.config.steps
        if asked is not None:
            return f"was aborted after {steps:,} of {asked:,} steps" if steps < asked else ""
        timed = self.document.get("step_seconds") is not None
        return "" if timed else f"was aborted after {after}, before its speed was measured"


def entry_of(
    document: Mapping[str, Any],
    *,
    id: int = 0,  # noqa: A002  # the field's name
    at: float | None = None,
    source: str = "lab",
    group: str = "",
    repeat: int = 0,
    label: str = "",
    environment: Mapping[str, Any] | None = None,
    cell: str = "",
    problem: str = "",
) -> Entry:
    """Return the entry of a document that may come from anywhere.

    Everything in it is checked, limited in size and safe to show.
    """
    values = bounded(document)
    config: LabConfig | None = None
    if isinstance(values.get("config"), dict):
        try:
            config = LabConfig.from_mapping(values["config"])
        except (ConfigError, TypeError):
            config = None
    return Entry(
        id=id,
        at=time.time() if at is None else at,
        source=_word(source),
        label=_word(label),
        group=_word(group),
        repeat=repeat,
        config=config,
        device=_text(values, "device"),
        device_name=_text(values, "device_name"),
        torch_version=_text(values, "torch_version"),
        environment=bounded(environment or {}),
        document=values,
        cell=_word(cell),
        problem=problem,
    )


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = values.get(key)
    return value if isinstance(value, str) else None


def _word(text: object) -> str:
    return str(bounded(str(text)))[:MAX_NAME_CHARS]


class RunLedger:
    """The file at ``path``, which is made when something is first added.

    Every call opens and closes it: one object may be used from several threads. All methods
    raise :class:`LedgerError`.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()

    def add(
        self,
        document: Mapping[str, Any],
        *,
        source: str = "lab",
        group: str = "",
        repeat: int = 0,
        label: str = "",
        environment: Mapping[str, Any] | None = None,
        cell: str = "",
    ) -> Entry:
        """Write down one run and return its entry.

        ``environment`` adds to what is known about this machine without asking any program. A cell
        of a group has each repeat only once; if it exists already, that entry is returned.
        """
        whole = {**here(document), **(environment or {})}
        entry = entry_of(
            document,
            source=source,
            group=group,
            repeat=repeat,
            label=label,
            environment=whole,
            cell=cell,
        )
        text = json.dumps(entry.document, allow_nan=False)
        # there may be a thousand ranks, or graph breaks with very long reasons
        if len(text) > MAX_DOCUMENT_CHARS:
            tight = bounded(document, ledger_file.TIGHT_STRING_CHARS, ledger_file.TIGHT_ITEMS)
            entry, text = replace(entry, document=tight), json.dumps(tight, allow_nan=False)
        if len(text) > MAX_DOCUMENT_CHARS:
            raise LedgerError(
                "A run was not saved in the ledger.",
                f"Its document has {len(text):,} characters; the ledger keeps at most "
                f"{MAX_DOCUMENT_CHARS:,}.",
                "gpuscope lab --headless --json > run.json    saves it to a file",
            )
        row = (
            entry.at,
            entry.source,
            entry.label,
            entry.group,
            entry.repeat,
            entry.cell,
            json.dumps(entry.environment, allow_nan=False),
            text,
        )
        with self._open(write=True) as db:
            cursor = db.execute(
                "INSERT INTO runs (at, source, label, grp, repeat, cell, environment, document) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                row,
            )
            if cursor.rowcount:
                found = db.execute(_SELECT + " WHERE id = ?", (cursor.lastrowid,)).fetchone()
            else:
                found = db.execute(
                    _SELECT + " WHERE grp = ? AND cell = ? AND repeat = ?",
                    (entry.group, entry.cell, entry.repeat),
                ).fetchone()
        return _entry(found)

    def entries(self, *, limit: int | None = 200, group: str | None = None) -> list[Entry]:
        """Return the newest ``limit`` entries, newest first, of one group if named.

        If ``limit`` is None, return all. Empty if there is no file.
        """
        where, values = (" WHERE grp = ?", [group]) if group is not None else ("", [])
        with self._open() as db:
            if db is None:
                return []
            rows = db.execute(
                f"{_SELECT}{where} ORDER BY id DESC LIMIT ?",
                [*values, -1 if limit is None else limit],
            ).fetchall()
        return [_entry(row) for row in rows]

    def get(self, id: int) -> Entry | None:  # noqa: A002  # the field's name
        """Return the entry with this id, None where there is none."""
        with self._open() as db:
            row = db.execute(_SELECT + " WHERE id = ?", (_rowid(id),)).fetchone() if db else None
        return _entry(row) if row else None

    def remove(self, id: int) -> bool:  # noqa: A002  # the field's name
        """Remove the entry with this id, and return whether there was one."""
        if not self.path.exists():
            return False
        with self._open(write=True) as db:
            return bool(db.execute("DELETE FROM runs WHERE id = ?", (_rowid(id),)).rowcount)

    def remove_group(self, group: str) -> int:
        """Remove the runs and the plan of a sweep, and return how many runs there were."""
        if not group or not self.path.exists():
            return 0
        with self._open(write=True) as db:
            db.execute("DELETE FROM plans WHERE grp = ?", (group,))
            return int(db.execute("DELETE FROM runs WHERE grp = ?", (group,)).rowcount)

    def set_aside(self) -> Path | None:
        """Rename the file, whatever it is, so that the next run begins a new one.

        Return its new name, None if there was no file. Files that SQLite keeps beside it are
        renamed too.
        """
        return ledger_file.set_aside(self.path)

    def keep_plan(self, group: str, plan: Mapping[str, Any]) -> None:
        """Write down what a sweep is going to do, before it does it."""
        with self._open(write=True) as db:
            db.execute(
                "INSERT OR REPLACE INTO plans (grp, at, done, plan) VALUES (?, ?, 0, ?)",
                (group, time.time(), json.dumps(plan, allow_nan=False)),
            )

    def plan(self, group: str) -> dict[str, Any] | None:
        """Return the plan of a group, None where there is none."""
        with self._open() as db:
            row = (
                db.execute(f"SELECT {_PLAN} FROM plans WHERE grp = ?", (group,)).fetchone()
                if db
                else None
            )
        return _mapping(row[0])[0] if row else None

    def unfinished(self, limit: int = 50) -> list[tuple[str, float, dict[str, Any]]]:
        """Return group, time and plan of the sweeps that have not ended, newest first."""
        with self._open() as db:
            if db is None:
                return []
            rows = db.execute(
                f"SELECT grp, at, {_PLAN} FROM plans WHERE done = 0 ORDER BY at DESC LIMIT ?",
                (limit,),
            ).fetchall()
        return [(_word(group), _time(at), _mapping(plan)[0]) for group, at, plan in rows]

    def unfinished_work(self, digest: str) -> tuple[str, dict[str, Any]] | None:
        """Return the group and the plan of the newest unfinished work with this digest."""
        rows = self.unfinished()
        return next(
            ((group, plan) for group, _, plan in rows if plan.get("digest") == digest), None
        )

    def finish_plan(self, group: str) -> None:
        """Note that the sweep has come to its end."""
        with self._open(write=True) as db:
            db.execute("UPDATE plans SET done = 1 WHERE grp = ?", (group,))

    @contextmanager
    def _open(self, write: bool = False) -> Iterator[Any]:
        """Open a connection in one transaction.

        None if there is no file and nothing is to be written.
        """
        if not write and not self.path.exists():
            yield None
            return
        db = ledger_file.connect(self.path, write)
        try:
            yield db
            db.execute("COMMIT")
        except sqlite3.Error as error:
            raise ledger_file.explain(self.path, error) from None
        finally:
            db.close()


MAX_PLAN_CHARS = 4 << 20
_PLAN = f"CASE WHEN length(plan) <= {MAX_PLAN_CHARS} THEN plan END"
_SELECT = (
    "SELECT id, at, source, label, grp, repeat, cell, substr(environment, 1, 65536), "
    f"CASE WHEN length(document) <= {MAX_DOCUMENT_CHARS} THEN document END FROM runs"
)


def _rowid(value: int) -> int:
    return value if -(1 << 63) <= value < 1 << 63 else -1


def _time(at: object) -> float:
    """Return a time from the file; 0 for any other value that somebody has put there."""
    return float(at) if isinstance(at, (int, float)) else 0.0


def _entry(row: tuple[Any, ...]) -> Entry:
    number, at, source, label, group, repeat, cell, environment, text = row
    document, problem = _mapping(text)
    return entry_of(
        document,
        id=int(number),
        at=_time(at),
        source=source,
        label=label,
        group=group,
        repeat=repeat if isinstance(repeat, int) else 0,
        environment=_mapping(environment)[0],
        cell=cell,
        problem=problem,
    )


def _mapping(text: object) -> tuple[dict[str, Any], str]:
    """Return a JSON object out of the file, or why it has none."""
    if not isinstance(text, str):
        return {}, "its document is larger than the ledger keeps, or no text"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}, "its document is not JSON"
    return (value, "") if isinstance(value, dict) else ({}, "its document is not a JSON object")


def here(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known about the machine without asking any program.

    This is the host, the driver if the kernel reports it, and what the document says about its
    Python and CUDA. Unknown values are left out.
    """
    from .. import __version__

    found: dict[str, Any] = {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
    }
    found["gpuscope"] = __version__
    driver = _driver()
    if driver:
        found["driver"] = driver
    environment = document.get("environment")
    if isinstance(environment, Mapping):
        found.update({str(key): value for key, value in environment.items() if value is not None})
    for key in ("python_version", "cuda_version", "driver_version"):
        if document.get(key) is not None:
            found[key.removesuffix("_version")] = document[key]
    return found


def _driver() -> str:
    """Return the driver's version from the kernel module's own text.

    It is the first word with a dot in the first line.
    """
    try:
        with _DRIVER_FILE.open(encoding="utf-8", errors="replace") as file:
            line = file.readline(500)
    except OSError:
        return ""
    return next((word for word in line.split() if word[0].isdigit() and "." in word), "")
