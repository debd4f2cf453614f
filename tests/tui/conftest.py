"""For all tests of screens."""

from __future__ import annotations

import time
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a remembered state and a ledger that are empty, and the time of UTC."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
