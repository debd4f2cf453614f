"""Open the ledger's file safely, and explain what is wrong with it.

Data is limited in size when it is written and when it is read.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, overload

from ..errors import UserError, other_format
from ..wire.clean import clean

APPLICATION_ID = 0x67704C61
"""The application id in the header of our files: "gpLa". A file without it is not ours."""
SCHEMA = 1
WAIT_SECONDS = 30.0
"""How long to wait for another process that writes."""
MAX_STRING_CHARS, MAX_ITEMS, MAX_DEPTH = 4000, 2000, 8
TIGHT_STRING_CHARS, TIGHT_ITEMS = 400, 250
"""Smaller limits, for a document that would otherwise be too large."""
_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    source TEXT NOT NULL,
    label TEXT NOT NULL,
    grp TEXT NOT NULL,
    repeat INTEGER NOT NULL,
    cell TEXT NOT NULL,
    environment TEXT NOT NULL,
    document TEXT NOT NULL
);
CREATE INDEX runs_of_group ON runs (grp);
CREATE UNIQUE INDEX one_of_each ON runs (grp, cell, repeat) WHERE cell <> '';
CREATE TABLE plans (
    grp TEXT PRIMARY KEY,
    at REAL NOT NULL,
    done INTEGER NOT NULL,
    plan TEXT NOT NULL
);
"""


class LedgerError(UserError):
    """The ledger cannot be used; the file is as it was."""


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """Return a connection inside a transaction. Raises :class:`LedgerError`.

    File and tables are made where there are none.
    """
    db: sqlite3.Connection | None = None
    try:
        if write:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        db = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        _check(db, path)
        db.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    except (sqlite3.Error, OSError) as error:
        if db is not None:
            db.close()
        raise explain(path, error) from None
    except LedgerError:
        assert db is not None
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN")  # one moment's picture: another process may be making the tables
    application, schema = _header(db)
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    db.execute("COMMIT")
    if application == APPLICATION_ID and schema == SCHEMA:
        return
    if application == APPLICATION_ID:
        own = f"begin another ledger: export GPUSCOPE_LEDGER={_other(path)}"
        name = f"The ledger {clean(str(path))}"
        raise LedgerError(*other_format(name, schema, SCHEMA, instead=own).args)
    if application or schema or tables:
        raise LedgerError(
            f"{clean(str(path))} is not a gpuscope ledger.",
            "It is an SQLite file of another program, and was left as it is.",
            f"export GPUSCOPE_LEDGER={_other(path)}",
        )
    _make(db, "DELETE" if _shared_by_hosts(path) else "WAL")


def _make(db: sqlite3.Connection, journal: str) -> None:
    """Make the tables of a new file.

    Another process may be doing the same; the first one to get the lock makes them. SQLite does not
    wait for a lock when it changes the journal mode, so that is done here.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            db.execute(f"PRAGMA journal_mode = {journal}")
            break
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    db.execute("BEGIN IMMEDIATE")
    if _header(db)[0] == 0:
        for statement in _TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute("COMMIT")


def _header(db: sqlite3.Connection) -> tuple[int, int]:
    return tuple(
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )


def _other(path: Path) -> str:
    return shlex.quote(clean(str(path.with_name(path.stem + "-2" + path.suffix))))


_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "afs",
    "9p",
    "glusterfs",
    "fuse.sshfs",
    "wekafs",
)


def _shared_by_hosts(path: Path) -> bool:
    """Whether other hosts may have this file open, by the type of its file system.

    A write-ahead log needs memory that all its users share, so it cannot be used there.
    """
    try:
        device = os.stat(path.parent).st_dev
        name = f"{os.major(device)}:{os.minor(device)}"
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split()
                if words[2] == name:
                    return words[words.index("-") + 1].startswith(_NETWORK)
    except (OSError, ValueError, IndexError):
        pass
    return False


def set_aside(path: Path) -> Path | None:
    """Rename the file, as :meth:`Ledger.set_aside` says."""
    new = path.with_name(
        f"{path.name}.aside-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    )
    try:
        if not path.exists():
            return None
        path.rename(new)
        for ending in ("-wal", "-shm", "-journal"):  # data that is not in the file itself yet
            sibling = path.with_name(path.name + ending)
            if sibling.exists():
                sibling.rename(new.with_name(new.name + ending))
    except OSError as error:
        raise explain(path, error) from None
    return new


def explain(path: Path, error: Exception) -> LedgerError:
    """Explain an error of SQLite or of the system to a user."""
    name, text = clean(str(path)), str(error)
    quoted = shlex.quote(name)
    if isinstance(error, OSError) or "unable to open" in text or "readonly" in text:
        reason = (error.strerror or text) if isinstance(error, OSError) else text
        return LedgerError(
            f"The ledger {name} cannot be opened or written.",
            f"{clean(reason)}.",
            "export GPUSCOPE_LEDGER=/path/to/a/file/you/may/write.sqlite",
        )
    if "locked" in text or "busy" in text:
        return LedgerError(
            f"The ledger {name} is in use.",
            f"Another process has held it for more than {WAIT_SECONDS:.0f} s.",
            f"fuser -v {quoted}    shows which",
        )
    if "full" in text:
        return LedgerError(
            f"Nothing was written to the ledger {name}.", "The disk is full.", f"df -h {quoted}"
        )
    if "not a database" in text or "encrypted" in text:
        return LedgerError(
            f"{name} is not a gpuscope ledger.",
            "It is not an SQLite file, or its start is damaged. It was not changed.",
            "gpuscope lab runs set-aside    renames it (nothing is deleted); the next run starts "
            "a new ledger",
        )
    return LedgerError(
        f"The ledger {name} is damaged.",
        f"SQLite says: {clean(text)}. It was not changed.",
        "gpuscope lab runs set-aside    renames it (nothing is deleted); the next run starts a "
        "new ledger",
    )


# ── what goes in and comes out ────────────────────────────────────────────────────────────────────


@overload
def bounded(
    value: Mapping[Any, Any], chars: int = ..., items: int = ..., depth: int = ...
) -> dict[str, Any]: ...
@overload
def bounded(value: object, chars: int = ..., items: int = ..., depth: int = ...) -> Any: ...
def bounded(
    value: object, chars: int = MAX_STRING_CHARS, items: int = MAX_ITEMS, depth: int = MAX_DEPTH
) -> Any:
    """Return a value as JSON of limited depth, length and width.

    It has no number that JSON lacks, and all strings are safe to show. Values that are too long are
    cut at their end.
    """
    if isinstance(value, str):
        return clean(value, chars)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth <= 0:
        return None
    if isinstance(value, Mapping):
        some = list(value.items())[:items]
        return {clean(str(key), 200): bounded(item, chars, items, depth - 1) for key, item in some}
    if isinstance(value, (list, tuple)):
        return [bounded(item, chars, items, depth - 1) for item in value[:items]]
    return clean(str(value), chars)
