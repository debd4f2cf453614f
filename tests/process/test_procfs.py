"""What /proc says of processes."""

from __future__ import annotations

import os

import pytest

from gpuscope.process import procfs


def test_a_hidden_process_runs_unless_its_start_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    start = procfs.start_ticks(os.getpid())
    assert start is not None
    assert procfs.still_runs(os.getpid(), start)
    assert not procfs.still_runs(os.getpid(), start - 1), "an earlier process with this pid"

    def refuse(path: str) -> bytes:
        raise PermissionError(path)

    monkeypatch.setattr(procfs, "read", refuse)
    assert procfs.still_runs(os.getpid(), None)
    assert not procfs.still_runs(os.getpid(), start), "what is hidden now was not hidden then"
