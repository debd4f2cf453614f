"""The child process that reads a snapshot, with limited memory and CPU time.

It answers requests on standard input until that closes. It is started by path (``python -I -S
…/snapshot/child.py LIMIT_BYTES SECONDS``), so that it works from an installed package and from a
checkout. A request is a line of JSON. An answer is a word (progress, ok, failure), a space and a
line of JSON.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import gpuscope.snapshot  # noqa: F401

    del sys.path[0]  # otherwise files beside the package could shadow the standard library

from gpuscope.snapshot import model
from gpuscope.snapshot.difference import compare
from gpuscope.snapshot.history import MAX_BLOCKS, layout_of, part_of
from gpuscope.snapshot.moments import Moments, NoSuchMoment
from gpuscope.snapshot.unpickle import Unreadable
from gpuscope.snapshot.views import Snapshot, peak_rss_bytes

HEADROOM = 0.65
"""The share of the memory limit that loading may use.

The rest is for building the answer, which takes about another third of what was loaded.
"""
QUERY_SECONDS = 60


class Child:
    def __init__(self, limit: int, seconds: int) -> None:
        self.limit, self.seconds = limit, seconds
        self.snapshot: Snapshot | None = None

    def cap(self) -> None:
        """Lower the soft limit again, and allow processor time for one more file."""
        if self.limit:
            resource.setrlimit(resource.RLIMIT_AS, (int(self.limit * HEADROOM), self.limit))
        self.allow(self.seconds)

    def more_memory(self) -> None:
        if self.limit:
            resource.setrlimit(resource.RLIMIT_AS, (self.limit, self.limit))

    def allow(self, seconds: int) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        allowed = int(used.ru_utime + used.ru_stime) + 1 + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (allowed, hard))

    def answer(self, question: dict[str, Any]) -> None:
        """Answer one question; an error is an answer too."""
        try:
            say("ok", self._answer(question))
        except Unreadable as error:
            fail(error.code, str(error))
        except NoSuchMoment as error:
            fail("usage", str(error))
        except MemoryError:
            self.snapshot = None
            self.more_memory()
            fail("too_big", "reading it takes more memory than the limit allows")
        except OSError as error:
            code = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
            fail(code, f"cannot read it: {error.strerror or error}")
        except RecursionError:
            fail("hostile", "this pickle is nested deeper than any snapshot")

    def _answer(self, question: dict[str, Any]) -> Any:
        ask, top = question["ask"], question.get("top", 20)
        if ask == "open":
            self.cap()
            self.snapshot = Snapshot(question["path"], top, say_progress, self.more_memory)
            self.snapshot.summary.peak_rss_bytes = peak_rss_bytes()
            return self.snapshot.summary
        if self.snapshot is None:
            raise Unreadable("usage", "no snapshot is open")
        if ask == "diff":
            self.cap()
            before = Snapshot(question["path"], 1, say_progress, self.more_memory, traces=False)
            return compare(before, self.snapshot, top)
        self.allow(QUERY_SECONDS)
        if ask == "sized":
            return self.snapshot.sized(question["device"], question["low"], top)
        moments = self._moments(question["device"])
        if ask == "part":
            return part_of(moments.columns, question["begin"])
        if ask == "layout":
            table, known = self.snapshot.segments[question["device"]]
            if len(table.block_size) + len(table.size) > MAX_BLOCKS:
                raise Unreadable(
                    "too_big", f"more than {MAX_BLOCKS:,} blocks are live at the end of the trace"
                )
            return layout_of(table, known)
        if ask == "course":
            return moments.course(question["stack"])
        if ask == "at":
            return moments.at(moments.resolve(question["moment"]), top)
        first, last = moments.resolve(question["first"]), moments.resolve(question["last"])
        return moments.between(first, last, top)

    def _moments(self, device: int) -> Moments:
        assert self.snapshot is not None
        found = self.snapshot.moments.get(device)
        if found is None:
            known = ", ".join(map(str, sorted(self.snapshot.moments))) or "none"
            raise Unreadable("usage", f"cuda:{device} has no trace here (those with one: {known})")
        return found


def encode(content: object) -> bytes:
    """Return dataclasses and what they contain as JSON.

    ``asdict`` is not used, because it would copy every list number by number.
    """
    return json.dumps(content, separators=(",", ":"), allow_nan=False, default=vars).encode()


def say(word: str, content: object) -> None:
    data = encode(content)
    if len(data) > model.MAX_MESSAGE_BYTES - 64:
        word, data = (
            "failure",
            b'{"code":"too_big","text":"the answer is too long: ask for fewer rows"}',
        )
    sys.stdout.buffer.write(word.encode() + b" " + data + b"\n")
    sys.stdout.buffer.flush()


def say_progress(share: float) -> None:
    say("progress", min(share, 1.0))


def fail(code: str, text: str) -> None:
    say("failure", {"code": code, "text": text[:2000]})


def listen(questions: list[dict[str, Any]], arrived: threading.Semaphore) -> None:
    """Read requests in a thread of its own.

    If the parent ends, this also ends the child in the middle of a long load.
    """
    for line in sys.stdin.buffer:
        questions.append(json.loads(line))
        arrived.release()
    os._exit(0)


def main(limit: int, seconds: int) -> None:
    gc.disable()  # a pickle creates many containers, and none of them is garbage while it loads
    child = Child(limit, seconds)
    child.cap()
    questions: list[dict[str, Any]] = []
    arrived = threading.Semaphore(0)
    threading.stack_size(256 << 10)
    threading.Thread(target=listen, args=(questions, arrived), daemon=True).start()
    try:
        while True:
            arrived.acquire()
            child.answer(questions.pop(0))
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
