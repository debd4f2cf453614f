"""Find out what a target of ``gpuscope doctor`` is, and have it examined.

The content of a file decides, not its name. Every examiner is imported only when it is needed. An
examiner that is missing or fails becomes a line in the report's ``problems``, and the other targets
are still examined.
"""

from __future__ import annotations

import codecs
import gzip
import io
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ....doctor import dead
from ....doctor.file_kinds import GZIP, HEAD_BYTES, is_binary, kind_of, unpacked
from ....doctor.finding import Report
from ....doctor.messages import THE_SYMPTOM
from ....doctor.messages.prose import kind_of_document
from ....errors import UserError
from ....missing_file import MissingFile
from ....text.units import window_text
from ....wire.clean import clean
from ....wire.files import open_regular
from ... import remote
from . import left_elsewhere

PIECE_BYTES = 64 << 10
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PYTHON_LINE = re.compile(rb"#![^\n]*\bpython")
_TRAINING = re.compile(
    rb"torch|cuda|nccl|traceback "
    rb"\(most|\bgpu|\bepoch|\bloss\b|\bsteps?\b|\bit/s|s/it\b|\bdataloader|\bcheckpoint",
    re.I,
)
_HOST = re.compile(r"[\w.-]+@[\w.-]+")


class CannotExamine(UserError):
    """A target that cannot be examined; the text is a whole sentence and says what to do."""


def examine(
    targets: Sequence[str], ask_torch: bool, timeout: float, ways: Any = None, symptom: str = ""
) -> Report:
    """Examine everything that was asked for, in this order.

    Without targets and without a symptom, these are the environment, every trainer here, and the
    trainers that ended badly in the last hour.

    ``ways`` are the verb's arguments, needed for targets on other hosts. ``symptom`` is the user's
    description of the failure: it is combined with a log, and judged separately from any other
    target.
    """
    if not targets and ways is not None and ways.via:
        there = _ask(
            "The trainers there", "gpuscope.cli.commands.doctor.remote", None, ways, timeout
        )
        return there + _described(symptom)
    if not targets and not symptom:
        environment = _ask(
            "The environment",
            "gpuscope.cli.commands.doctor.environment",
            ask_torch=ask_torch,
            timeout=timeout,
        )
        trainers = _ask("The trainers here", "gpuscope.cli.commands.doctor.live", None, timeout)
        return (
            environment
            + trainers
            + _ask("What trainers left here", "gpuscope.cli.commands.doctor.left")
        )
    report = Report()
    targets = list(dict.fromkeys(targets))
    together = _left_by_a_job(targets)
    if together:
        report += _ask("The job", "gpuscope.doctor.dead", together, _name_of(together))
    for target in targets:
        if Path(target) in together:
            continue
        try:
            if ways is not None and left_elsewhere.is_place(target):
                report += _ask(clean(target, 200), left_elsewhere.__name__, target, ways)
            elif ways is not None and remote.is_remote(ways, target):
                report += _ask(
                    clean(target, 200), "gpuscope.cli.commands.doctor.remote", target, ways, timeout
                )
            else:
                report += _examine(target, timeout, symptom)
        except CannotExamine as why:
            report += Report(problems=(str(why),))
    if THE_SYMPTOM not in report.examined:
        report += _described(symptom)
    if ask_torch:
        report += _ask(
            "The environment",
            "gpuscope.cli.commands.doctor.environment",
            ask_torch=True,
            timeout=timeout,
        )
    return report


def _described(symptom: str) -> Report:
    """Return the findings that the user's words alone support."""
    return (
        _ask("The symptom", "gpuscope.doctor.messages:of_symptom", symptom) if symptom else Report()
    )


def _left_by_a_job(targets: Sequence[str]) -> list[Path]:
    """Return the targets here that one job left: folders of its files, and files named together."""
    named = [target for target in targets if target not in ("", "-")]
    folders = [Path(one) for one in named if os.path.isdir(one) and dead.is_of_a_job(Path(one))]
    files = [Path(one) for one in named if os.path.isfile(one) and _is_of_a_job(Path(one))]
    several = len(files) > 1
    together = folders or (several and (dead.are_of_one_job(files) or any(map(_says_ranks, files))))
    return [*folders, *files] if together else []


def _says_ranks(path: Path) -> bool:
    """Return whether a log names ranks, so that what is named beside it may be of the same job."""
    return dead.says_ranks(_end_of(path))


def _is_of_a_job(path: Path) -> bool:
    """Return whether a file may be a log, a dump or an error file of a job."""
    try:
        with open_regular(path) as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    if path.suffix in (".py", ".pyw", ".ipynb") or _PYTHON_LINE.match(head):
        return False
    kind = kind_of(head)
    if kind == "text" and kind_of_document(head.decode("utf-8", "replace").split("\n"), path.name):
        return False
    return kind in ("flight", "elastic", "core", "text")


def _name_of(paths: Sequence[Path]) -> str:
    """Return how a report calls the files of a job."""
    first = clean(paths[0].resolve().name or str(paths[0]), 200)
    return first if len(paths) == 1 else f"{first} and {len(paths) - 1} more"


def _ask(what: str, module: str, *words: Any, **options: Any) -> Report:
    """Return the report of a module's ``examine``, or of the function after a colon.

    An exception in it is reported as a problem and does not hide what the other examiners found.
    """
    name, _, function = module.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(name), function or "examine")
    except (ImportError, AttributeError) as error:
        return Report(
            problems=(f"{what}: the module that reads this is missing ({clean(str(error), 200)}).",)
        )
    try:
        result = found(*words, **options)
    except UserError as error:
        said = clean(str(error), 300)
        return Report(problems=(said if said.startswith(what) else f"{what}: {said}",))
    except Exception as error:
        return Report(
            problems=(
                f"{what}: the check failed ({type(error).__name__}: {clean(str(error), 300)}).",
            )
        )
    if not isinstance(result, Report):
        return Report(
            problems=(f"{what}: the module that reads this returned {type(result).__name__}.",)
        )
    return result


def _examine(target: str, timeout: float, symptom: str) -> Report:
    if target == "-":
        return _standard_input(symptom)
    if not target:
        raise CannotExamine(
            "an empty word is not a target. Next: name a file or a PID, or leave it out to "
            "examine this machine."
        )
    path = Path(target)
    name = clean(path.name or target, 200)
    if target.isascii() and target.isdigit() and not os.path.lexists(target):
        if not 0 < int(target[:12]) < 1 << 22:
            raise CannotExamine(f"{name}: no process can have this pid.")
        live = "gpuscope.cli.commands.doctor.live"
        found = _ask(f"Process {target}", live, int(target), timeout)
        return found if found.examined else _logs_of(int(target), timeout, symptom) + found
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError) as error:
        raise CannotExamine(_no_such(target, error)) from None
    if kind == stat.S_IFDIR:
        return _ask(name, "gpuscope.doctor.script:report", [str(path)])
    try:
        with _opened(path, name, kind == stat.S_IFIFO, timeout) as file:
            return _file(file, path, name, kind == stat.S_IFREG, symptom)
    except OSError as error:
        raise CannotExamine(f"{name}: cannot be read ({error.strerror or error}).") from None


def _logs_of(pid: int, timeout: float, symptom: str) -> Report:
    """Return what the files say into which a process writes, if it has no probe.

    A probe that has not answered yet will say more, and contradict what only looks like a fault.
    """
    from ...one_trainer import has_socket, is_started_with_us

    report = Report()
    if has_socket(pid) or is_started_with_us(pid):
        return report
    for log in dict.fromkeys(Path(f"/proc/{pid}/fd/{number}").resolve() for number in (1, 2)):
        try:
            if log.is_file():
                report += _examine(str(log), timeout, symptom)
        except CannotExamine:  # it has nothing about a training
            continue
    return report


def _no_such(target: str, error: Exception) -> str:
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    shown = clean(target, 200)
    if _HOST.fullmatch(target):
        return (
            f"{shown}: no such file. What runs on another host is examined there: ssh {shown} "
            "gpuscope doctor"
        )
    if isinstance(error, FileNotFoundError):
        if os.path.islink(target):
            return f"{shown}: this symbolic link leads to a file that is not there."
        missing = MissingFile(target)
        return f"{missing.what}. Next: {missing.next}."
    return f"{shown}: cannot be examined ({why})."


def _standard_input(symptom: str) -> Report:
    stream = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise CannotExamine("standard input cannot be read.")
    if sys.stdin.isatty():
        sys.stderr.write("gpuscope doctor: paste a log or a traceback, then press Ctrl-D\n")
    head = stream.peek(HEAD_BYTES)[:HEAD_BYTES]
    if kind_of(head) in ("snapshot", "recording", "box", "flight", "core", "packed"):
        raise CannotExamine("standard input: not text. Next: write it to a file, and name that.")
    return _text(stream, head, "log", "standard input", symptom)


def _file(file: Any, path: Path, name: str, regular: bool, symptom: str) -> Report:
    head = file.peek(HEAD_BYTES)[:HEAD_BYTES]
    if path.suffix in (".py", ".pyw") or _PYTHON_LINE.match(head):
        found = _ask(name, "gpuscope.doctor.script:report", [str(path)])
        if not found.findings and not found.problems:
            found += _of_no_use(file, head, name)
        if found.problems:
            return found
        here = "gpuscope.cli.commands.doctor.running_script:report"
        runs = _ask(name, here, path, name, bool(found.findings))
        return (replace(found, examined=()) if runs.examined else found) + runs
    if path.suffix == ".ipynb":
        stem = clean(path.stem, 100)
        raise CannotExamine(
            f"{name}: a notebook. Next: jupyter nbconvert --to script {name}; gpuscope doctor "
            f"{stem}.py"
        )
    kind = kind_of(head) if regular else "text"
    if kind in ("snapshot", "recording", "box"):
        return _ask(name, "gpuscope.doctor.postmortem", path, kind)
    if kind in ("flight", "elastic", "core") or (kind == "packed" and name.startswith("core")):
        return _ask(name, "gpuscope.doctor.dead", [path], name)
    found = _text(file, head, name, name, symptom)
    if regular and found.examined and dead.says_ranks(head + _end_of(path)):
        job = _ask(name, "gpuscope.doctor.dead", [path], name)
        return replace(job, examined=()) + found
    return found


def _end_of(path: Path) -> bytes:
    """Return the end of a file, which says more of a job than its beginning."""
    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - HEAD_BYTES))
        return file.read()


def _of_no_use(file: Any, head: bytes, name: str) -> Report:
    """Said of a script that the checks pass over: their silence would read as praise."""
    if not head:
        return Report(problems=(f"{name}: it is empty.",))
    if len(head) < HEAD_BYTES and b"torch" not in file.read(HEAD_BYTES):
        why = "it does not mention torch, so nothing was checked"
        return Report(
            problems=(
                f"{name}: {why}. Next: gpuscope doctor on the file or the folder that trains.",
            )
        )
    return Report()


def _opened(path: Path, name: str, fifo: bool, timeout: float) -> Any:
    """Open the file, which is read only once.

    A named pipe that nobody opens for writing within ``timeout`` seconds is refused, because
    opening it would block for ever.
    """
    if not fifo:
        return io.BufferedReader(open_regular(path).detach(), HEAD_BYTES)  # type: ignore[attr-defined]
    import select
    import time

    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    until, first = time.monotonic() + timeout, b""
    while not poll.poll(50):
        try:
            first = os.read(descriptor, 1)
        except BlockingIOError:
            break  # a writer has opened the pipe but has not written yet, which may take any time
        if first:
            break
        if time.monotonic() >= until:
            os.close(descriptor)
            raise CannotExamine(
                f"{name}: a pipe that no writer opened within {window_text(timeout)}."
            )
    os.set_blocking(descriptor, True)
    rest = io.FileIO(descriptor, "rb")
    return io.BufferedReader(_Begun(first, rest) if first else rest, HEAD_BYTES)


class _Begun(io.RawIOBase):
    """A stream of which the beginning was read already."""

    def __init__(self, first: bytes, rest: io.FileIO) -> None:
        self._first, self._rest = first, rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if not self._first:
            return self._rest.readinto(buffer)
        count = min(len(self._first), len(buffer))
        buffer[:count], self._first = self._first[:count], self._first[count:]
        return count

    def close(self) -> None:
        self._rest.close()
        super().close()


def _text(stream: Any, head: bytes, name: str, what: str, symptom: str) -> Report:
    """A log, unpacked and as UTF-8, whatever it comes in."""
    if not head:
        raise CannotExamine(f"{what}: it is empty.")
    if head.startswith(GZIP):
        head = unpacked(head)
        stream = gzip.GzipFile(fileobj=stream)
        if not head:
            raise CannotExamine(f"{what}: a damaged or empty gzip file.")
    if head.startswith(_UTF16):
        stream = codecs.EncodedFile(stream, "utf-8", "utf-16", errors="replace")
    else:
        _refuse_binary(head, what)
    text = _Text(stream)
    found = _ask(what, "gpuscope.doctor.messages:report", text, name, what, symptom)
    if text.problem:
        found += Report(problems=(f"{what}: was only partly read ({text.problem}).",))
    elif not text.of_training and found == Report(examined=found.examined):
        raise CannotExamine(
            f"{what}: it has nothing about a PyTorch training, so nothing was checked."
        )
    return found


class _Text:
    """A log while it is being read.

    ``problem`` says why reading ended early; the part before is still examined. ``of_training``
    says that the text mentions a training.
    """

    def __init__(self, stream: Any) -> None:
        # A codecs stream passes unknown attributes on, so its read1 would return the bytes before
        # recoding.
        self._next: Callable[[int], bytes] = (
            stream.read if isinstance(stream, codecs.StreamRecoder) else stream.read1
        )
        self.problem = ""
        self.of_training = False

    def read(self, size: int = -1) -> bytes:
        """Like that of a file. In small pieces, so that of a damaged one only the last is lost."""
        pieces: list[bytes] = []
        left = size if size >= 0 else sys.maxsize
        while left > 0 and not self.problem:
            try:
                piece = self._next(min(left, PIECE_BYTES))
            except (OSError, EOFError, zlib.error, ValueError) as error:
                self.problem = clean(str(error), 200)
                break
            if not piece:
                break
            pieces.append(piece)
            left -= len(piece)
        data = b"".join(pieces)
        self.of_training = (
            self.of_training or _TRAINING.search(data, 0, HEAD_BYTES * 16) is not None
        )
        return data


def _refuse_binary(head: bytes, what: str) -> None:
    if head.startswith(b"PK\x03\x04"):
        raise CannotExamine(
            f"{what}: a zip file, as torch.save() writes: a checkpoint does not show why a run "
            f"failed."
        )
    if is_binary(head):
        raise CannotExamine(f"{what}: an unknown binary file, neither text nor snapshot.")
