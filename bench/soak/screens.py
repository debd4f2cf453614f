"""Run the screen under random keys, clicks and resizes.

Meanwhile random things happen on the hosts that it shows.

python -m bench.soak.screens --seconds 1800 --seed 1

Each round runs the real program in a pseudo-terminal of its own, with the hosts of ``random_hosts``
or a recording, at one of four sizes, behind a fast link or one of 30 kB/s. Keys, sizes and events
on the hosts follow from the seed of the round, so ``--seed N --rounds 1`` plays it again; only
their timing depends on the machine. A round fails if the program ends by itself, logs an error, or
does not leave when it is told to. Exit code 1 if one failed.
"""

from __future__ import annotations

import argparse
import faulthandler
import fcntl
import logging
import os
import pty
import random
import select
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from bench.soak.random_hosts import RandomSource

ROOT = Path(__file__).parent.parent.parent
RECORDINGS = sorted((ROOT / "demos/recordings").glob("*.gsr"))
SIZES = ((80, 24), (120, 40), (200, 60), (50, 14))
SLOW_BYTES_PER_SECOND = 30_000
LEAVING_SECONDS = 60.0
"""How long the program may take to end, which is long for busy machines."""
ESCAPES = [f"\x1b[{end}" for end in ("A", "B", "C", "D", "5~", "6~", "15~", "Z", "H", "F")]
KEYS = [
    *"012345PjjjkkkuzZnNcmWwwrlhxXoytaspSiHKvAB fF+-<>,.{}[]:?",
    *"\r\r\r\r\t\t\x1b\x1b\x1b\x04\x15\x0c\x10\x7f",
    *ESCAPES,
]
TYPED = (
    "/gpu\r",
    "/\x1b",
    "/zzz\r",
    "/\u5b66\r",
    "PT",
    "2m",
    "2W",
    "2c",
    "1\r",
    "1\t\r",
    "P\r",
    "a\x1b",
    "?\x1b",
)


def steps(seed: int, columns: int, rows: int) -> Iterator[tuple[str | tuple[int, int], float]]:
    """Yield what is typed, or the new size of the terminal, and how long to wait after it."""
    chance = random.Random(seed)
    while True:
        kind = chance.random()
        if kind < 0.05:
            columns, rows = chance.choice(
                (*SIZES, (chance.randrange(20, 220), chance.randrange(5, 70)))
            )
            yield (columns, rows), chance.choice((0.0, 0.01, 0.2))
        elif kind < 0.15:
            button = chance.choice((0, 0, 64, 65))
            place = f"{button};{chance.randrange(columns) + 1};{chance.randrange(rows) + 1}"
            yield f"\x1b[<{place}M\x1b[<{place}m", chance.choice((0.0, 0.1))
        elif kind < 0.25:
            yield chance.choice(TYPED), chance.choice((0.0, 0.3))
        elif kind < 0.3:
            yield "".join(chance.choices(KEYS, k=20)), 0.1
        else:
            yield chance.choice(KEYS), chance.choice((0.0, 0.0, 0.02, 0.15))


# ── the program ──


def show(seed: int, log: Path) -> int:
    """Run the program over the hosts of this seed; other errors are written to ``log``."""
    from gpuscope.predict.request import CannotPredict, Traced
    from gpuscope.store.replay import ReplaySource
    from gpuscope.tui.app.app import GpuscopeApp
    from gpuscope.tui.app.launch import run_app
    from gpuscope.tui.background.predictions import Predictions
    from gpuscope.tui.background.sources import Hosts

    logging.basicConfig(filename=log, level=logging.ERROR)
    handle = GpuscopeApp._handle_exception

    def note(app: GpuscopeApp, error: Exception) -> None:
        logging.error("the screen died", exc_info=error)
        handle(app, error)

    def refuse(request: object) -> Traced:
        raise CannotPredict("Not here.", "a soak of the screen starts no torch", "", "aborted")

    Predictions._tracer = lambda self: refuse  # type: ignore[method-assign]
    GpuscopeApp._handle_exception = note  # type: ignore[method-assign, assignment]
    with open(log.with_suffix(".stacks"), "w") as stacks:
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=True)
        chance = random.Random(f"show {seed}")
        if chance.random() < 0.2:
            return run_app(replay=ReplaySource(chance.choice(RECORDINGS)))
        count, hz = chance.choice((1, 1, 1, 3, 12)), chance.choice((2.0, 10.0, 30.0))
        sources = [RandomSource(f"{seed}-{number}", hz / count) for number in range(count)]
        return run_app(make_hosts=lambda _: Hosts(sources))


# ── the terminal ──


class Terminal:
    """A pseudo-terminal with the program in it.

    It reads no more than its link takes, and answers as terminals do.
    """

    def __init__(self, seed: int, folder: Path, size: tuple[int, int], slow: bool) -> None:
        self.log = folder / "errors.log"
        self.slow, self._taken = slow, time.monotonic()
        self.left_seconds = 0.0
        own = {
            name: str(folder)
            for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME")
        }
        over_ssh = {"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"} if slow and seed % 2 else {}
        environment = {
            **os.environ,
            **own,
            **over_ssh,
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
        }
        words = [
            sys.executable,
            "-m",
            "bench.soak.screens",
            "--show",
            str(seed),
            "--log",
            str(self.log),
        ]
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(sys.executable, words, environment)
        self.resize(*size)

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        try:
            os.write(self._fd, text.encode())
        except OSError:
            pass

    def wait(self, seconds: float) -> bool:
        """Read for this long; return whether the program still runs."""
        until = time.monotonic() + seconds
        while True:
            left = max(0.0, until - time.monotonic())
            room = 1 << 16
            if self.slow:
                room = int((time.monotonic() - self._taken) * SLOW_BYTES_PER_SECOND)
            if room < 64:
                time.sleep(0.01)
            elif select.select([self._fd], [], [], left)[0]:
                if not self._read(min(room, 4096)):
                    return False
            elif self.slow:
                self._taken = time.monotonic()
            if time.monotonic() >= until:
                return True

    def _read(self, count: int) -> bool:
        try:
            data = os.read(self._fd, count)
        except OSError:
            return False
        self._taken += len(data) / SLOW_BYTES_PER_SECOND
        if b"\x1b[5n" in data:
            self.type("\x1b[0n")
        return bool(data)

    def leave(self) -> str:
        """Tell the program to end; return what is wrong with how it ended, "" for nothing."""
        self.slow = False
        self.type("\x03")
        began = time.monotonic()
        until = time.monotonic() + LEAVING_SECONDS
        while self.wait(0.2):
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGUSR1)
                self.wait(1.0)
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return f"it does not leave:\n{self.log.with_suffix('.stacks').read_text()}"
        self.left_seconds = time.monotonic() - began
        return ""

    def ended(self) -> str:
        """Return whether something went wrong in a program that has ended."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._fd)
        errors = self.log.read_text() if self.log.exists() else ""
        if code == 0 and not errors:
            return ""
        return f"exit code {code}\n{errors}"


def play(seed: int, seconds: float) -> tuple[str, str]:
    """Play one round; return what it was, and what went wrong, "" for nothing."""
    size, slow = SIZES[seed % len(SIZES)], bool(seed // len(SIZES) % 2)
    what = f"seed {seed}, {size[0]}x{size[1]}, {'slow' if slow else 'fast'}"
    with tempfile.TemporaryDirectory(prefix="gpuscope-soak-") as folder:
        terminal = Terminal(seed, Path(folder), size, slow)
        terminal.wait(1.5)
        until, typed = time.monotonic() + seconds, 0
        for step, pause in steps(seed, *size):
            if isinstance(step, tuple):
                terminal.resize(*step)
            else:
                terminal.type(step)
            typed += 1
            if not terminal.wait(pause):
                failure = terminal.ended()  # correct if the palette was told to quit
                break
            if time.monotonic() > until:
                failure = terminal.leave() or terminal.ended()
                break
    return f"{what}: {typed} steps, left in {terminal.left_seconds:.1f} s", failure


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1, help="of the first round; each has the next")
    parser.add_argument("--seconds", type=float, default=1800.0, help="in all")
    parser.add_argument("--round", type=float, default=40.0, help="seconds of one round")
    parser.add_argument("--rounds", type=int, default=0, help="so many at most")
    parser.add_argument("--show", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--log", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.show is not None:
        return show(args.show, args.log)
    failed, played, began = [], 0, time.monotonic()
    while time.monotonic() - began < args.seconds and not (args.rounds and played >= args.rounds):
        seed = args.seed + played
        what, failure = play(seed, min(args.round, args.seconds))
        played += 1
        failed += [seed] if failure else []
        print(what, f"FAILED\n{failure}" if failure else "ok", flush=True)
    print(f"{played} rounds in {time.monotonic() - began:.0f} s, failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
