"""The IPython extension: ``%load_ext gpuscope``, then ``%gpuscope`` and ``%%gpuscope``.

A measured cell runs as if its first line were not there: IPython itself runs it, with its own
tracebacks, line numbers and ``await``. The measurement hooks into IPython's events before and after
a cell, so an error in the measurement is reported below the cell and never changes what the cell
does.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import uuid
from typing import Any

from ..probe import count_now
from . import cell
from .helper import LiveLook, LookError, look_once
from .markup import Output, as_html, as_text, note_html, region, wrapped

COUNT_SECONDS = 0.2
"""Seconds that the thread of the cell may spend counting the tensors of optimizers and models.

The probe counts them at the next training step, which a notebook cell may never take.
"""
LIVE_SECONDS, MOST_LIVE_SECONDS = 60.0, 3600.0
_MEASURED = re.compile(r"^%%gpuscope(?=\s|$)(.*)")
_ATTRIBUTE = "_gpuscope_extension"
USAGE = (
    "%gpuscope shows this process's GPU memory and the doctor's findings; --live [SECONDS] "
    "keeps them up to date until the next cell. %%gpuscope [--lines] [--keep-peak] as the first "
    "line of a cell measures the cell."
)


def load(shell: Any) -> None:
    """Add the magics to ``shell``, and let the probe see this process."""
    from .. import watch

    if getattr(shell, _ATTRIBUTE, None) is None:
        watch()
        setattr(shell, _ATTRIBUTE, Extension(shell))


def unload(shell: Any) -> None:
    """Take the magics out again. The probe stays, as after :func:`gpuscope.watch`."""
    found = getattr(shell, _ATTRIBUTE, None)
    if found is not None:
        found.remove()
        setattr(shell, _ATTRIBUTE, None)


class Extension:
    """What is loaded into one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._live: LiveLook | None = None
        self._cells = threading.local()  # a kernel may run cells in several threads
        shell.register_magic_function(self._look, "line", "gpuscope")
        shell.register_magic_function(self._run_measured, "cell", "gpuscope")
        shell.input_transformers_cleanup.insert(0, without_first_line)
        shell.events.register("pre_run_cell", self._before_cell)
        shell.events.register("post_run_cell", self._after_cell)

    def remove(self) -> None:
        """Take out what was added."""
        self._stop_live()
        self._shell.input_transformers_cleanup.remove(without_first_line)
        self._shell.events.unregister("pre_run_cell", self._before_cell)
        self._shell.events.unregister("post_run_cell", self._after_cell)
        for kind in ("line", "cell"):
            self._shell.magics_manager.magics[kind].pop("gpuscope", None)

    # ── %gpuscope ──

    def _look(self, line: str = "") -> None:
        """Show this process's GPU memory and the doctor's findings.

        With ``--live [SECONDS]`` the output is updated in place until the next cell starts or the
        time is over (60 s if no number is given).
        """
        try:
            seconds = live_seconds(line)
            self._stop_live()
            count_now(COUNT_SECONDS)
            if seconds and self._in_terminal:
                self._say(
                    "A terminal's output cannot be updated, so this is one reading. Live: gpuscope"
                )
                seconds = 0.0
            if not seconds:
                self._show(look_once(self._width))
                return
            place = {"display_id": uuid.uuid4().hex}
            self._show(_saying("Looking …"), transient=place)
            self._live = LiveLook(
                seconds, self._width, lambda shown: self._show(shown, transient=place, update=True)
            )
        except (LookError, ValueError) as error:
            self._say(str(error))
        except Exception as error:
            self._say(f"gpuscope failed: {type(error).__name__}: {error}")

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    # ── %%gpuscope ──

    def _run_measured(self, line: str, body: str) -> None:
        """Run the cell, and show its time, its peak of memory and what it left behind.

        ``--lines`` records where device memory is allocated, and shows by size and source line what
        is still allocated after the cell. ``--keep-peak`` does not reset torch's peak counters.
        """
        # Somebody called the magic from code, by its name.
        self._shell.run_cell(f"%%gpuscope {line}\n{body}")

    @property
    def _running(self) -> list[cell.MeasuredCell | None]:
        """The cells that run in this thread, the outermost first; None is one not measured."""
        if not hasattr(self._cells, "running"):
            self._cells.running = []
        found: list[cell.MeasuredCell | None] = self._cells.running
        return found

    def _before_cell(self, info: Any = None) -> None:
        measured = None
        try:
            self._stop_live()
            match = _MEASURED.match((getattr(info, "raw_cell", None) or "").lstrip())
            if match is not None:
                measured = cell.MeasuredCell(cell_options(match[1]))
                measured.begin()
        except ValueError as error:
            measured = None
            self._say(f"{error} The cell runs without being measured.")
        except Exception as error:
            measured = None
            self._say(f"gpuscope does not measure: {type(error).__name__}: {error}")
        self._running.append(measured)

    def _after_cell(self, result: Any = None) -> None:
        running = self._running
        measured = running.pop() if running else None
        if measured is None:
            return
        try:
            tables = measured.end(self._name_of)
            self._show(Output(region(as_html(tables)), as_text(tables)))
        except Exception as error:
            self._say(f"gpuscope did not measure: {type(error).__name__}: {error}")

    def _name_of(self, file: str) -> str:
        """Return what a cell's file is called in tracebacks, or the file's name."""
        try:
            found = self._shell.compile.format_code_name(file)
        except Exception:
            found = None
        return " ".join(found) if found else os.path.basename(file)

    # ── output ──

    @property
    def _in_terminal(self) -> bool:
        return type(self._shell).__name__ == "TerminalInteractiveShell"

    @property
    def _width(self) -> int:
        try:
            return min(os.get_terminal_size().columns, 100) if self._in_terminal else 100
        except OSError:
            return 80

    def _show(self, shown: Output, **how: Any) -> None:
        text = wrapped(shown.text, self._width)
        if self._in_terminal:
            print(text)
        else:
            data = {"text/plain": text, "text/html": shown.html}
            self._shell.display_pub.publish(data, **how)

    def _say(self, text: str) -> None:
        """Tell of a problem. Nothing that fails here reaches the user's cell."""
        try:
            self._show(_saying(text))
        except Exception as error:
            print(f"gpuscope: {text} ({error})", file=sys.stderr)


def _saying(text: str) -> Output:
    return Output(region(note_html(text)), text)


def without_first_line(lines: list[str]) -> list[str]:
    """Return a measured cell without its magic, for IPython to run.

    The first line is replaced by a comment, so that line numbers stay right. It is removed if
    another cell magic follows, because a cell magic must be on the first line.
    """
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None or not _MEASURED.match(lines[first].rstrip("\n")):
        return lines
    rest = lines[first + 1 :]
    if rest and rest[0].startswith("%%"):
        return rest
    return [*lines[:first], "# measured by gpuscope\n", *rest]


def _refusal(magic: str, word: str) -> str:
    """Return what a magic takes, after the word that it does not take; help is what was asked."""
    return USAGE if word in ("--help", "-h") else f"{magic} does not take {word}. {USAGE}"


def live_seconds(line: str) -> float:
    """Return how long a look goes on, 0 for one look. Raises ValueError for other words."""
    words = line.split()
    if not words:
        return 0.0
    odd = words[:1] if words[0] != "--live" else words[2:]
    if odd:
        raise ValueError(_refusal("%gpuscope", odd[0]))
    if len(words) == 1:
        return LIVE_SECONDS
    try:
        seconds = float(words[1])
    except ValueError:
        seconds = -1.0
    if not 1.0 <= seconds <= MOST_LIVE_SECONDS:
        raise ValueError(f"--live takes seconds, from 1 to {MOST_LIVE_SECONDS:.0f}. {USAGE}")
    return seconds


def cell_options(line: str) -> cell.CellOptions:
    """Return the options of a measured cell. Raises ValueError for unknown words."""
    words = line.split()
    for word in words:
        if word not in ("--lines", "--keep-peak"):
            raise ValueError(_refusal("%%gpuscope", word))
    return cell.CellOptions("--lines" in words, "--keep-peak" in words)
