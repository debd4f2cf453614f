"""Start the child process that has torch, and ask it for traces.

This is the parent's side. It limits the child's time, its memory and the length of its answers.

traced = trace(Request("gpt", batch=8), seconds=60)

The child may abort, print without end or never return; all of that ends in a
:class:`CannotPredict`. Nothing of the user's code runs in this process, and nothing of it reaches
the terminal.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from ..process.line_child import ChildError, Late, LineChild, TooMuch
from ..text.units import window_text
from ..wire.clean import clean
from .fully_sharded import Policy
from .request import CannotPredict, Doubt, Request, Traced, alone
from .sharding import sharded
from .trace import Growth, Owner, PhaseMark, Trace

SECONDS = 60.0
"""How long one trace may take."""
KEPT = 4
"""Limit of the traces that are kept; each takes some MB."""
MAX_ANSWER_BYTES = 256 << 20


def trace(request: Request, seconds: float = SECONDS) -> Traced:
    """Return what ``request`` allocates.

    Blocks for up to ``seconds``; raises :class:`CannotPredict`.
    """
    with Tracer() as tracer:
        return tracer.trace(request, seconds)


class Tracer:
    """A child that traces one request after the other.

    It is started when it is first needed, and again after it has died.
    """

    def __init__(
        self,
        python: str | None = None,
        folder: str | None = None,
        path: Sequence[str] = (),
        writes: bool = True,
    ):
        """Prepare a child of ``python`` that works in ``folder``.

        The child looks for modules in the folders of ``path`` first. By default it is this Python,
        or the Lab's, in this process's folder. ``writes`` says whether it may write compiled
        modules, which it must not if the sources change within a second.
        """
        self._python = python
        self.folder, self._path, self._writes = folder, list(path), writes
        self._process: LineChild | None = None
        self._folder: Any = None
        self._known: dict[Request, Traced] = {}
        """The last few trainings on one GPU, from which those on several GPUs are derived."""

    def __enter__(self) -> Tracer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the child, so that it loads torch meanwhile.

        Otherwise :meth:`trace` starts it.
        """
        if self._process is not None and self._process.running:
            return
        self.close()
        argv = [self._find_python(), "-m", "gpuscope.predict.tracing"]
        try:
            self._process = LineChild(
                argv,
                self._environment(),
                own_pipe=True,
                max_line_bytes=MAX_ANSWER_BYTES,
                folder=self.folder,
            )
        except OSError as error:
            raise CannotPredict(
                "The tracing process could not be started.",
                str(error.strerror),
                "df -h /tmp; ulimit -u",
                "aborted",
            ) from None

    def trace(self, request: Request, seconds: float = SECONDS) -> Traced:
        """Return what ``request`` allocates.

        Raises :class:`CannotPredict`; if the child has died, the next request gets a new one.
        """
        single = alone(request)
        found = self._known.get(single)
        if found is None or request.sharding in ("none", "dp", "ddp"):
            found = self._known[single] = self._ask(single, seconds)
            if len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
        policy = Policy.of(request)
        trace, doubts = sharded(found.trace, request.sharding, request.ranks, policy)
        return replace(found, trace=trace, doubts=[*found.doubts, *doubts])

    def _ask(self, request: Request, seconds: float) -> Traced:
        deadline = time.monotonic() + seconds
        self.start()
        try:
            line = self._exchange(
                json.dumps(asdict(request)).encode() + b"\n", deadline, request, seconds
            )
        except BaseException:
            self.close()
            raise
        return _decoded(line)

    def close(self) -> None:
        """End the child and everything that it has started.

        May be called at any time, and twice.
        """
        process, self._process = self._process, None
        self._known.clear()
        if process is not None:
            process.close()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _exchange(
        self, question: bytes, deadline: float, request: Request, seconds: float
    ) -> bytes:
        """Return the child's answer.

        Raises :class:`CannotPredict` if there is none, with the last lines that the child printed.
        """
        process = self._process
        assert process is not None
        model = clean(request.model)
        try:
            process.write(question)
            return process.read_line(deadline)
        except Late:
            what = f"{model} was not traced within {window_text(seconds)}."
            why, code = "building the model or its steps takes longer, or never ends.", "timeout"
            then = "allow more time: --timeout 300"
        except TooMuch:
            what, why, code = "The tracing process wrote more than allowed.", "", "aborted"
            then = "trace fewer micro-batches"
        except ChildError as error:
            what = f"The process that traced {model} ended without an answer."
            why, code = f"{error}. The cause is in the model's code or torch.", "aborted"
            then = (
                "run one step of it alone; or calibrate on a running trainer: gpuscope predict PID"
            )
        if why and process.last_words:
            why += f" Last line: {process.last_words}"
        raise CannotPredict(what, why, then, code)

    # ── which Python ──────────────────────────────────────────────────────────────────────────────

    def _find_python(self) -> str:
        """Return this Python if it has torch, else the one that the Lab would use."""
        if self._python is None:
            from ..lab import launch

            try:
                self._python = launch.find_python()
            except launch.NoTorch as error:
                failure = error.failure
                raise CannotPredict(
                    "A prediction needs a Python with PyTorch, and found none.",
                    failure.why,
                    failure.next,
                    "no_torch",
                ) from None
        return self._python

    def _environment(self) -> dict[str, str]:
        environ = dict(os.environ)
        if self._python == sys.executable:
            path = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        else:
            from ..lab import launch

            self._folder = launch.only_this_package()
            path = self._folder.name
        theirs = environ.get("PYTHONPATH")
        environ["PYTHONPATH"] = os.pathsep.join([path, *self._path, *([theirs] if theirs else [])])
        if not self._writes:
            environ["PYTHONDONTWRITEBYTECODE"] = "1"
        environ["PYTHONSAFEPATH"] = "1"  # so that no torch/ in the current folder is imported
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
            "The tracing process wrote something unexpected.",
            clean(str(error), 300),
            "report this",
            "aborted",
        ) from None


def _trace(columns: dict[str, Any]) -> Trace:
    owners = [
        Owner(
            clean(owner["category"]),
            clean(owner["module"]),
            clean(owner["operation"]),
            tuple(map(clean, owner["stack"])),
        )
        for owner in columns["owner_table"]
    ]
    return Trace(
        sizes=columns["sizes"],
        owners=columns["owners"],
        owner_table=owners,
        events=columns["events"],
        marks=[PhaseMark(mark["at"], clean(mark["name"])) for mark in columns["marks"]],
        streams={int(block): stream for block, stream in columns["streams"].items()},
        growth=Growth(**columns["growth"]) if columns["growth"] else None,
        frees_instead=[
            {int(block): at for block, at in moments.items()}
            for moments in columns["frees_instead"]
        ],
    )
