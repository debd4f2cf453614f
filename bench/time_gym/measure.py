"""Measures one training of the gym: its steps by a clock outside, and what ``why`` says of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.terminal import descendants

from .gate import DEVICE, PREPARE, READY, SKIPPED
from .index import Variant

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"step (\d+)\b")
TAIL_LINES = 30
WARM_SECONDS, WARM_STEPS = 1.2, 4
"""How long a training runs, and how many steps it makes, before the question about it."""
AFTER_SECONDS = 1.2
"""How long its steps are counted after the question."""
FIRST_SECONDS = 90.0
"""How long the first steps may take, because they may be compiled."""
WHY_SECONDS = 60.0


class Broken(Exception):
    """The training did not get as far as being measured."""


@dataclass
class Started:
    """A training that was started: ``steps`` are ``(time.monotonic(), steps by then)``."""

    variant: Variant
    process: subprocess.Popen[str]
    steps: list[tuple[float, int]] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    device: str = ""
    skipped: str = ""
    ready: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        """Note what the training prints, and when; this runs in a thread of its own."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            now = time.monotonic()
            step = STEP.match(line)
            if step:
                self.steps.append((now, int(step[1])))
            elif line.startswith(DEVICE):
                self.device = line[len(DEVICE) :].strip()
            elif line.startswith(SKIPPED):
                self.skipped = line[len(SKIPPED) :].strip()
            elif line.strip() == READY:
                self.ready.set()
            else:
                self.tail[:] = [*self.tail[1 - TAIL_LINES :], line.rstrip()]
        self.ready.set()

    def go(self) -> None:
        """Start the training. Raises :class:`Broken` if it cannot train."""
        self.ready.wait(FIRST_SECONDS)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write("go\n")
            self.process.stdin.close()
        if self.skipped:
            raise Broken(f"skipped: {self.skipped}")

    def prepare(self) -> None:
        """Let it load what CUDA needs, if it has imported torch by now."""
        if self.ready.is_set() and not self.skipped:
            assert self.process.stdin is not None
            with contextlib.suppress(OSError):
                self.process.stdin.write(PREPARE + "\n")
                self.process.stdin.flush()

    def warm(self) -> None:
        """Wait until it trains at its usual pace. Raises :class:`Broken` where it does not."""
        until = time.monotonic() + FIRST_SECONDS
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise Broken(f"it ended with exit code {self.process.returncode}")
            known = list(self.steps)
            if (
                known
                and known[-1][1] >= WARM_STEPS
                and known[-1][0] - known[0][0] >= 0.8 * WARM_SECONDS
                and time.monotonic() - known[0][0] >= WARM_SECONDS
            ):
                return
            time.sleep(0.02)
        raise Broken(f"it made {self.steps[-1][1] if self.steps else 0} steps in {FIRST_SECONDS} s")

    def end(self) -> None:
        """End the training with all processes that it has started."""
        begun = descendants(self.process.pid)
        for pid in (self.process.pid, *begun):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(30)


def start(variant: Variant, device: str, folder: Path) -> Started:
    """Start a training under ``gpuscope run``; it waits for :meth:`Started.go`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "run", "--no-doctor", "--", *variant.command(device)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        env=environment(folder, **variant.variables()),
        start_new_session=True,
    )
    started = Started(variant, process)
    threading.Thread(target=started.read, daemon=True).start()
    return started


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Ours with this checkout importable, and what the trainings leave behind in ``folder``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUSCOPE")}
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    places = {"XDG_STATE_HOME": str(folder / "state"), "GPUSCOPE_BLACKBOX_DIR": str(folder / "box")}
    return {
        "OMP_NUM_THREADS": "4",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        **kept,
        **places,
        "PYTHONPATH": os.pathsep.join(paths),
        "TMPDIR": str(folder),
        **more,
    }


def ask(pid: int, folder: Path, *words: str) -> tuple[dict[str, Any], float, str]:
    """Return what ``gpuscope why PID --json`` says, in how many seconds, and its errors."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", "why", str(pid), "--json", *words],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=WHY_SECONDS,
        cwd=ROOT,
        env=environment(folder),
    )
    took = time.monotonic() - begin
    try:
        return json.loads(done.stdout), took, done.stderr
    except ValueError:
        return {}, took, (done.stdout + done.stderr)[-2000:]


def measured(started: Started, folder: Path, following: Started | None = None) -> dict[str, Any]:
    """Let a training run, ask about it, end it, and return the row of it.

    The ``following`` training loads what CUDA needs once the questions with a look are answered.
    """
    subject = started.variant.subject
    row: dict[str, Any] = {
        "name": started.variant.name,
        "subject": subject.id,
        "cured": started.variant.cured,
        "names": list(subject.names),
        "single": subject.single,
        "quiet": subject.quiet,
        "problem": None,
    }
    begin = time.monotonic()
    try:
        started.go()
        started.warm()
        asked = time.monotonic()
        document, took, errors = ask(started.process.pid, folder)
        answered = time.monotonic()
        if following is not None:
            following.prepare()
        quick, quick_took, quick_errors = ask(started.process.pid, folder, "--no-look")
        time.sleep(max(0.0, AFTER_SECONDS - quick_took))
        row |= {
            "why": _without_twins(document),
            "why_seconds": took,
            "no_look": _without_twins(quick),
            "no_look_seconds": quick_took,
            "asked": [asked - begin, answered - begin],
            "steps": [[round(at - begin, 4), step] for at, step in list(started.steps)],
        }
        if not document or not quick:
            row["problem"] = f"no answer: {errors or quick_errors}"
        elif started.process.poll() is not None:
            row["problem"] = "it ended while it was asked about"
    except Broken as error:
        row["problem"] = str(error)
    except subprocess.TimeoutExpired:
        row["problem"] = f"gpuscope why took more than {WHY_SECONDS:g} s"
    finally:
        started.end()
    row["device"] = started.device
    row["seconds"] = time.monotonic() - begin
    if row["problem"]:
        time.sleep(0.1)
        row["output"] = started.tail[-12:]
    return row


def _without_twins(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of one trainer without what it says twice."""
    return {key: value for key, value in document.items() if key != "trainers"}


@contextlib.contextmanager
def scratch() -> Any:
    """Yield a folder for what the trainings leave behind."""
    with tempfile.TemporaryDirectory(prefix="time-gym-", ignore_cleanup_errors=True) as name:
        yield Path(name)
