"""The ledger's file: several writers, damage, other people's files, hostile content."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuscope.lab import ledger as ledger_module
from gpuscope.lab import ledger_file
from gpuscope.lab.ledger import PATH_VARIABLE, LedgerError, RunLedger, default_path
from tests.fakes.lab_runs import document

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def ledger(tmp_path: Path) -> RunLedger:
    return RunLedger(tmp_path / "data" / "lab.sqlite")


def test_what_was_added_comes_back(ledger: RunLedger) -> None:
    added = ledger.add(document(amp="bf16"), label="mine", environment={"driver": "580.1"})
    found = ledger.get(added.id)
    assert found == added
    assert (found.label, found.source, found.group, found.repeat) == ("mine", "lab", "", 0)
    assert found.config is not None
    assert (found.config.amp, found.config.batch) == ("bf16", 8)
    assert (found.device, found.device_name, found.torch_version) == ("cpu", "a CPU", "2.13.0")
    assert found.document == document(amp="bf16")
    assert found.environment["driver"] == "580.1"
    assert found.environment["host"] == os.uname().nodename
    assert abs(found.at - time.time()) < 60


def test_newest_first_by_group_and_bounded(ledger: RunLedger) -> None:
    for number in range(5):
        ledger.add(document(), group="a" if number % 2 else "b")
    assert [entry.id for entry in ledger.entries()] == [5, 4, 3, 2, 1]
    assert [entry.id for entry in ledger.entries(limit=2)] == [5, 4]
    assert [entry.id for entry in ledger.entries(group="a", limit=None)] == [4, 2]


def test_reading_makes_no_file(ledger: RunLedger) -> None:
    assert ledger.entries() == []
    assert ledger.get(1) is None
    assert not ledger.remove(1)
    assert ledger.plan("g") is None
    assert not ledger.path.exists()


def test_remove(ledger: RunLedger) -> None:
    first, second = ledger.add(document()), ledger.add(document())
    assert ledger.remove(first.id)
    assert not ledger.remove(first.id)
    assert [entry.id for entry in ledger.entries()] == [second.id]
    assert ledger.add(document()).id == 3, "an id is never given to another run"
    assert ledger.get(1 << 70) is None


def test_a_cell_has_each_repeat_once(ledger: RunLedger) -> None:
    first = ledger.add(document(0.1), group="g", cell="c", repeat=0)
    again = ledger.add(document(0.2), group="g", cell="c", repeat=0)
    assert again == first
    ledger.add(document(0.1), group="g", cell="c", repeat=1)
    ledger.add(document(0.1), group="g", repeat=1)  # without a cell anything goes
    ledger.add(document(0.1), group="g", repeat=1)
    assert len(ledger.entries()) == 4


@pytest.mark.slow
def test_many_processes_write_at_once(ledger: RunLedger) -> None:
    code = (
        "import sys; from pathlib import Path; from gpuscope.lab.ledger import RunLedger\n"
        "ledger = RunLedger(Path(sys.argv[1]))\n"
        "for n in range(25): ledger.add({'steps': n}, label=sys.argv[2])"
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(ledger.path), str(n)], cwd=ROOT, stderr=subprocess.PIPE
        )
        for n in range(4)
    ]
    with ThreadPoolExecutor(4) as pool:  # and threads of one process, with one object
        list(pool.map(lambda n: ledger.add({"steps": n}, label="thread"), range(25)))
    for process in started:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    entries = ledger.entries(limit=None)
    assert len(entries) == 125
    assert len({(entry.label, entry.document["steps"]) for entry in entries}) == 125


def test_it_is_a_write_ahead_log_but_not_where_other_hosts_may_have_it_open(
    ledger: RunLedger, monkeypatch
) -> None:
    ledger.add(document())
    assert sqlite3.connect(ledger.path).execute("PRAGMA journal_mode").fetchone() == ("wal",)
    monkeypatch.setattr(ledger_file, "_shared_by_hosts", lambda path: True)
    other = RunLedger(ledger.path.with_name("on-nfs.sqlite"))
    other.add(document())
    assert sqlite3.connect(other.path).execute("PRAGMA journal_mode").fetchone() == ("delete",)
    assert len(other.entries()) == 1


def test_a_killed_writer_loses_nothing_and_holds_nobody_up(ledger: RunLedger) -> None:
    ledger.add(document(), label="before")
    code = (
        "import os, sys; from pathlib import Path; from gpuscope.lab import ledger_file\n"
        "db = ledger_file.connect(Path(sys.argv[1]), True)\n"
        "db.execute(\"UPDATE runs SET label = 'half'\"); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(ledger.path)], cwd=ROOT).returncode == -9
    assert ledger.get(1).label == "before"
    ledger.add(document(), label="after")
    assert [entry.label for entry in ledger.entries()] == ["after", "before"]


# ── files that are no ledger ──────────────────────────────────────────────────────────────────────


def refused(ledger: RunLedger, word: str) -> LedgerError:
    """Every way in says the same, and the file stays as it is."""
    before = ledger.path.read_bytes()
    for call in (
        ledger.entries,
        lambda: ledger.add(document()),
        lambda: ledger.get(1),
        lambda: ledger.remove(1),
    ):
        with pytest.raises(LedgerError) as caught:
            call()
        assert word in str(caught.value)
        assert caught.value.what
        assert caught.value.why
        assert caught.value.next
    assert ledger.path.read_bytes() == before
    return caught.value


def test_a_ledger_of_another_format_is_left_alone(ledger: RunLedger) -> None:
    ledger.add(document())
    with sqlite3.connect(ledger.path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert "GPUSCOPE_LEDGER" in refused(ledger, "has format 99").next


def test_another_programs_database_is_left_alone(ledger: RunLedger) -> None:
    ledger.path.parent.mkdir()
    with sqlite3.connect(ledger.path) as db:
        db.execute("CREATE TABLE runs (id INTEGER)")
    db.close()
    refused(ledger, "an SQLite file of another program")


def test_a_file_that_is_no_database_is_left_alone_until_it_is_set_aside(ledger: RunLedger) -> None:
    ledger.path.parent.mkdir()
    ledger.path.write_text("my diary, long enough to be taken for a header of something " * 20)
    assert "set-aside" in refused(ledger, "is not an SQLite file, or its start is damaged").next
    new = ledger.set_aside()
    assert new is not None
    assert new.read_text().startswith("my diary")
    ledger.add(document())
    assert len(ledger.entries()) == 1
    assert ledger.set_aside() != new
    assert ledger.set_aside() is None


def test_a_damaged_ledger_is_told_and_set_aside_whole(ledger: RunLedger) -> None:
    for _ in range(60):
        ledger.add(document(), environment={"pad": "x" * 500})
    data = bytearray(ledger.path.read_bytes())
    for offset in range(4096, len(data), 4096):
        data[offset : offset + 200] = os.urandom(200)
    ledger.path.write_bytes(data)
    with pytest.raises(LedgerError) as caught:
        ledger.entries(limit=None)
    assert "is damaged" in caught.value.what
    assert ledger.path.read_bytes() == bytes(data)
    new = ledger.set_aside()
    assert new.read_bytes() == bytes(data)


def test_set_aside_takes_what_is_not_in_the_file_yet_with_it(ledger: RunLedger) -> None:
    ledger.add(document())
    reader = sqlite3.connect(ledger.path)  # keeps the log from being folded into the file
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM runs").fetchone()
    ledger.add(document(), label="only in the log")
    new = ledger.set_aside()
    reader.close()
    assert [entry.label for entry in RunLedger(new).entries()] == ["only in the log", ""]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(LedgerError, match="cannot be opened"):
        RunLedger(tmp_path / "x" / "lab.sqlite").add(document())


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot be opened"):
        RunLedger(tmp_path / "file" / "lab.sqlite").add(document())


def test_a_writer_that_never_lets_go_is_told(ledger: RunLedger, monkeypatch) -> None:
    ledger.add(document())
    monkeypatch.setattr(ledger_file, "WAIT_SECONDS", 0.1)
    holder = sqlite3.connect(ledger.path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="in use"):
        ledger.add(document())
    assert len(ledger.entries()) == 1, "readers do not wait for a writer"
    holder.close()
    ledger.add(document())


# ── hostile content ───────────────────────────────────────────────────────────────────────────────


def write_row(ledger: RunLedger, text: str, label: str = "", environment: str = "{}") -> None:
    ledger.add(document())
    with sqlite3.connect(ledger.path) as db:
        db.execute(
            "UPDATE runs SET document = ?, label = ?, environment = ?", (text, label, environment)
        )
    db.close()


def test_what_could_act_on_a_terminal_becomes_visible(ledger: RunLedger) -> None:
    evil = "\x1b]52;c;ZXZpbA==\x07\u202egpj"
    hostile = {**document(), "device_name": evil, evil: [evil, {"x": evil}], "torch_version": evil}
    added = ledger.add(hostile, label=evil, group=evil)
    write_row(ledger, json.dumps(hostile), evil, json.dumps({evil: evil}))
    for entry in (added, ledger.get(1)):
        assert "\x1b" not in repr(entry).replace("\\x1b", "")
        for text in (entry.label, entry.device_name, entry.torch_version, *entry.document):
            assert text.isprintable()
    assert "\\x1b" in ledger.get(1).label


@pytest.mark.parametrize(
    "text", ["", "no json", "[1, 2]", "12", "[" * 100_000, '{"config": ' * 2000, "\x00"]
)
def test_a_document_that_is_none_says_so(ledger: RunLedger, text: str) -> None:
    write_row(ledger, text)
    entry = ledger.entries()[0]
    assert entry.document == {}
    assert entry.problem
    assert entry.config is None


def test_columns_that_hold_anything(ledger: RunLedger) -> None:
    ledger.add(document())
    ledger.keep_plan("g", {"cells": []})
    with sqlite3.connect(ledger.path) as db:
        db.execute(
            "UPDATE runs SET at = 'x', source = x'ff00', label = 5, grp = 1e300, repeat = 'y', "
            "cell = x'1b'"
        )
        db.execute("UPDATE plans SET at = 'x', plan = x'00', grp = '\x1b[2J'")
    db.close()
    (entry,) = ledger.entries()
    assert (entry.at, entry.label, entry.repeat) == (0.0, "5", 0)
    assert entry.document == document()
    assert ledger.unfinished() == [("\\x1b[2J", 0.0, {})]


def test_sizes_are_bounded_on_the_way_in_and_out(ledger: RunLedger) -> None:
    with pytest.raises(LedgerError, match="not saved"):
        ledger.add({str(n): {"rows": ["x" * 3000] * 500} for n in range(20)})
    shortened = ledger.add({**document(), "ranks": [{"reason": "x" * 3000}] * 500})
    assert len(shortened.document["ranks"]) == 250
    assert {**shortened.document, "ranks": None} == {**document(), "ranks": None}
    entry = ledger.add(
        {
            "deep": [[[[[[[[[[1]]]]]]]]]],
            "long": list(range(5000)),
            "number": float("nan"),
            "big": 1 << 80,
        }
    )
    assert len(entry.document["long"]) == 2000
    assert (entry.document["number"], entry.document["big"]) == (None, None)
    assert ledger.get(entry.id) == entry
    write_row(ledger, '"' + "x" * (ledger_module.MAX_DOCUMENT_CHARS + 1) + '"')
    assert "larger than" in ledger.entries()[0].problem


def test_toggles_that_the_lab_does_not_know_are_none(ledger: RunLedger) -> None:
    odd = document()
    odd["config"]["teleport"] = True
    entry = ledger.add(odd)
    assert entry.config is None
    assert entry.document["config"]["teleport"] is True


def test_where_it_is(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.delenv(PATH_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_path() == tmp_path / "gpuscope" / "lab.sqlite"
    monkeypatch.setenv(PATH_VARIABLE, str(tmp_path / "mine.sqlite"))
    assert RunLedger().path == tmp_path / "mine.sqlite"


def test_the_driver_is_read_from_the_kernel_module(monkeypatch, tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\n"
        "GCC 12.1\n"
    )
    monkeypatch.setattr(ledger_module, "_DRIVER_FILE", path)
    assert ledger_module.here({})["driver"] == "580.159.04"
    monkeypatch.setattr(ledger_module, "_DRIVER_FILE", tmp_path / "none")
    assert "driver" not in ledger_module.here({})
