"""The parent's side of tracing: starts the child that has torch, asks it, bounds its time, memory and words.

    traced = trace(Request("gpt", batch=8), seconds=60)

The child may abort, print without end or never return; all of that ends in a :class:`CannotPredict`. Nothing of the
user's code runs in this process, and nothing of it reaches the terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any

from ..wire.clean import clean
from .request import CannotPredict, Doubt, Request, Traced, alone
from .sharding import sharded
from .trace import Mark, Owner, Trace

SECONDS = 60.0
"""How long one trace may take."""
KEPT = 4
"""Traces at most, some MB each."""
MAX_ANSWER_BYTES = 256 << 20
_KEPT_BYTES = 4000
"""Of what the user's code prints: the last of it, for the message."""
_DYING_WORDS = {"KILL": "was killed: out of memory, or by hand", "SEGV": "crashed", "ABRT": "aborted"}


def trace(request: Request, seconds: float = SECONDS) -> Traced:
    """What ``request`` allocates. Blocks for up to ``seconds``; raises :class:`CannotPredict`."""
    with Tracer() as tracer:
        return tracer.trace(request, seconds)


class Tracer:
    """A child that traces one request after the other. It is started when first needed, and again after it died."""

    def __init__(self, python: str | None = None):
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None
        self._answers = -1
        self._rest = b""
        self._said = b""
        self._folder: Any = None
        self._known: dict[Request, Traced] = {}
        """The last few trainings on one GPU, of which those of several are worked out."""

    def __enter__(self) -> Tracer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Starts the child, so that it loads torch meanwhile. :meth:`trace` does it where it was not done."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        read, write = os.pipe()
        try:
            self._process = subprocess.Popen(
                [self._find_python(), "-m", "gpuscope.predict.tracing", str(write)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment(),
                pass_fds=(write,),
                start_new_session=True,
            )
        except OSError as error:
            os.close(read)
            raise CannotPredict(
                "The tracing child could not be started.", str(error.strerror), "df -h /tmp; ulimit -u", "aborted"
            ) from None
        finally:
            os.close(write)
        self._answers, self._rest, self._said = read, b"", b""

    def trace(self, request: Request, seconds: float = SECONDS) -> Traced:
        """What ``request`` allocates. Raises :class:`CannotPredict`; the next request gets a new child then, if this
        one is gone."""
        single = alone(request)
        found = self._known.get(single)
        if found is None or request.sharding == "none":
            found = self._known[single] = self._ask(single, seconds)
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        trace, doubts = sharded(found.trace, request.sharding, request.ranks)
        return replace(found, trace=trace, doubts=[*found.doubts, *doubts])

    def _ask(self, request: Request, seconds: float) -> Traced:
        deadline = time.monotonic() + seconds
        self.start()
        try:
            line = self._exchange(json.dumps(asdict(request)).encode() + b"\n", deadline, request, seconds)
        except BaseException:
            self.close()
            raise
        return _decoded(line)

    def close(self) -> None:
        """Ends the child and whatever it has started. May be called at any time, and twice."""
        process, self._process = self._process, None
        self._known.clear()
        if process is not None:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)  # its group may outlive it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._answers >= 0:
            os.close(self._answers)
            self._answers = -1
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    # ── the pipes ───────────────────────────────────────────────────────────────────────────────────────────────

    def _exchange(self, question: bytes, deadline: float, request: Request, seconds: float) -> bytes:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(question)
            process.stdin.flush()
        except OSError:
            raise self._ended(request) from None
        ready = select.poll()  # not select(): a viewer may have more than 1024 files open
        ready.register(self._answers, select.POLLIN)
        ready.register(process.stdout, select.POLLIN)
        parts, size = [self._rest], 0
        talking = True
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise CannotPredict(
                    f"{clean(request.model)} was not traced within {seconds:g} s.",
                    f"building the model or its steps takes longer, or never ends.{self._last_words()}",
                    "give it more time: --seconds 300",
                    "timeout",
                )
            events = ready.poll(1000 * min(left, 0.5))
            for descriptor, _ in events:
                if descriptor != self._answers:
                    said = os.read(descriptor, 1 << 16)
                    self._said = (self._said + said)[-_KEPT_BYTES:]
                    if not said and talking:
                        ready.unregister(descriptor)
                        talking = False
                    continue
                chunk = os.read(descriptor, 1 << 20)
                if not chunk:
                    raise self._ended(request)
                head, end, self._rest = chunk.partition(b"\n")
                parts.append(head)
                size += len(head)
                if end:
                    return b"".join(parts)
                if size > MAX_ANSWER_BYTES:
                    raise CannotPredict(
                        "The tracing child said more than it may.", "", "trace fewer micro-batches", "aborted"
                    )
            if not events and process.poll() is not None and not ready.poll(0):
                raise self._ended(request)

    def _ended(self, request: Request) -> CannotPredict:
        """The child is gone without an answer: why, as far as its end tells."""
        process = self._process
        assert process is not None
        try:
            code: int | None = process.wait(2.0)
        except subprocess.TimeoutExpired:
            code = None
        how = f"ended with exit code {code}"
        if code is None:
            how = "closed its answers"
        elif code < 0:
            name = signal.Signals(-code).name if -code in {int(s) for s in signal.Signals} else f"SIG{-code}"
            how = f"{_DYING_WORDS.get(name[3:], 'ended')} ({name})"
        if process.stdout is not None:
            with contextlib.suppress(OSError, ValueError):
                os.set_blocking(process.stdout.fileno(), False)
                self._said = (self._said + (os.read(process.stdout.fileno(), 1 << 16) or b""))[-_KEPT_BYTES:]
        return CannotPredict(
            f"The process that traced {clean(request.model)} {how}.",
            f"its own code or torch ended it.{self._last_words()}",
            "run one step of it by itself; or calibrate on a running trainer: gpuscope predict PID",
            "aborted",
        )

    def _last_words(self) -> str:
        lines = self._said.decode("utf-8", "replace").strip().splitlines()
        return f" Last words: {clean(lines[-1], 300)}" if lines else ""

    # ── which Python ────────────────────────────────────────────────────────────────────────────────────────────

    def _find_python(self) -> str:
        """This one if it has torch, else the one the lab would take."""
        if self._python is None:
            from ..lab import launch

            try:
                self._python = launch.find_python()
            except launch.NoTorch as error:
                failure = error.failure
                raise CannotPredict(
                    "A prediction needs a Python with PyTorch, and found none.", failure.why, failure.next, "no_torch"
                ) from None
        return self._python

    def _environment(self) -> dict[str, str]:
        environ = dict(os.environ)
        if self._python == sys.executable:
            path = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        else:
            from ..lab import launch

            self._folder = launch._only_this_package()
            path = self._folder.name
        theirs = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = os.pathsep.join([path, theirs]) if theirs else path
        environ["PYTHONSAFEPATH"] = "1"  # a torch/ or random.py in the current folder is not meant
        environ["OMP_NUM_THREADS"] = environ["MKL_NUM_THREADS"] = "1"  # nothing is computed
        environ["MALLOC_ARENA_MAX"] = "2"
        return environ


def _decoded(line: bytes) -> Traced:
    try:
        answer = json.loads(line)
        if "failure" in answer:
            what, why, then = (clean(str(word), 1000) for word in answer["failure"])
            raise CannotPredict(what, why, then, str(answer["code"]))
        content = answer["traced"]
        columns = content.pop("trace")
        doubts = [Doubt(**doubt) for doubt in content.pop("doubts")]
        return Traced(trace=_trace(columns), doubts=doubts, **content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CannotPredict(
            "The tracing child said something odd.", clean(str(error), 300), "report this", "aborted"
        ) from None


def _trace(columns: dict[str, Any]) -> Trace:
    names = ("category", "module", "operation")
    owners = [[clean(owner[name]) for name in names] for owner in columns["owner_table"]]
    return Trace(
        sizes=columns["sizes"],
        owners=columns["owners"],
        owner_table=[Owner(*owner) for owner in owners],
        events=columns["events"],
        marks=[Mark(mark["at"], clean(mark["name"])) for mark in columns["marks"]],
        streams={int(block): stream for block, stream in columns["streams"].items()},
    )
