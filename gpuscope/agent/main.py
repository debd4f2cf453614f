"""Run an agent from its start until the viewer goes away.

Frames go to standard output, requests come on standard input.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, List, NoReturn, Optional

from .. import __version__
from ..wire import frames
from ..wire.codec import WireError, encode
from .assembler import Assembler
from .hello import hello
from .outbox import Outbox
from .picture import Collector
from .requests import Requests
from .ticker import Beat

if TYPE_CHECKING:
    import argparse

PING_SECONDS = 30.0
SOONEST_SECONDS = 0.05
"""The least time between two ticks, if first answers come faster than the rate."""
ANSWER_SECONDS = 0.1
"""How long after the workers the assembler runs, so that they have time to answer."""
FLUSH_SECONDS = 1.0


def parse(argv: Optional[List[str]] = None) -> argparse.Namespace:
    import argparse

    parser = argparse.ArgumentParser(
        prog="gpuscope.agent",
        description="Collects GPU, host and trainer readings and writes them as NDJSON frames on "
        "standard output. Requests are read from standard input; the agent exits when that is "
        "closed.",
    )
    parser.add_argument(
        "--hz", type=_rate, default=2.0, help="samples per second, 0.1 to 10 (default 2)"
    )
    parser.add_argument("--nonce", default="", help="repeated in the first frame")
    parser.add_argument(
        "--no-ping-timeout",
        action="store_true",
        help="do not exit after 30 s without input",
    )
    parser.add_argument(
        "--no-redact", action="store_true", help="also send the arguments of other users' processes"
    )
    parser.add_argument(
        "--sockets",
        action="append",
        metavar="DIR",
        help="search this directory for probes instead (repeatable)",
    )
    parser.add_argument("--version", action="version", version=f"gpuscope {__version__}")
    return parser.parse_args(argv)


def _rate(text: str) -> float:
    try:
        hz = float(text)
    except ValueError:
        hz = 0.0
    if not 0.1 <= hz <= frames.MAX_RATE_HZ:
        import argparse

        raise argparse.ArgumentTypeError(f"must be a number from 0.1 to {frames.MAX_RATE_HZ:g}")
    return hz


class Agent:
    """One stream to one viewer.

    :meth:`run` returns when the viewer is gone, with the reason. ``greeted`` says that the hello
    was already sent.
    """

    def __init__(
        self,
        args: Any,
        outbox: Outbox,
        collector: Collector,
        requests_fd: int,
        greeted: bool = False,
    ) -> None:
        self._args = args
        self._greeted = greeted
        self._outbox = outbox
        self._collector = collector
        self._assembler = Assembler()
        self._hz: float = args.hz
        self._ended = ""
        self._ticked = float("-inf")
        self._dropped = 0
        self._behind = False
        self._writer = threading.Thread(target=self._write, name="outbox", daemon=True)
        self._requests = Requests(
            requests_fd,
            outbox.put,
            self._assembler.trainers,
            self._facts,
            lambda: self._collector.nvml.devices,
            self._set_rate,
            self.end,
            not args.no_redact,
        )

    def end(self, reason: str) -> None:
        """Let :meth:`run` return. Any thread and signal handlers may call this."""
        self._ended = self._ended or reason
        self._collector.bell.ring()

    def leave(self, why: str) -> None:
        """Send the bye, if somebody still reads."""
        self._outbox.put(encode(frames.Bye(why)))
        self._outbox.close()
        self._writer.join(FLUSH_SECONDS)

    def _set_rate(self, hz: float) -> None:
        self._hz = hz
        self._collector.set_rate(hz)
        self._collector.bell.ring()

    def _facts(self) -> Dict[str, Any]:
        nvml = self._collector.nvml
        return {
            name: value if isinstance(value, str) else None
            for name, value in (
                ("driver_version", nvml.driver_version),
                ("cuda_driver_version", nvml.cuda_version),
            )
        }

    def run(self) -> str:
        if not self._greeted:
            self._outbox.put(encode(hello(self._args)))
        self._writer.start()
        self._collector.start(self._requests.on_answer)
        assert self._collector.probes is not None
        self._requests.start(self._collector.probes)
        now = time.monotonic()
        beat, soon, key = Beat(1 / self._hz, now), now, now + frames.KEY_SECONDS
        while not self._ended:
            rung = self._collector.bell.wait(min(beat.next, soon) - time.monotonic())
            now = time.monotonic()
            beat.set(1 / self._hz, now, min(ANSWER_SECONDS, 0.25 / self._hz))
            if rung:
                soon = min(soon, max(now, self._ticked + SOONEST_SECONDS))
            if beat.due(now) or now >= soon:
                soon = float("inf")
                if now >= key:
                    key = now + frames.KEY_SECONDS
                    self._key_frame()
                self._tick(now)
            if not self._args.no_ping_timeout and self._requests.silent(PING_SECONDS):
                self.end(f"the viewer has been silent for {PING_SECONDS:.0f} s")
        self._collector.stop()
        return self._ended

    def _tick(self, now: float) -> None:
        self._ticked = now
        self._requests.expire(now)
        if self._behind:
            self._key_frame()
        before, sample, after = self._assembler.tick(self._collector.picture(), time.monotonic_ns())
        for frame in before:
            self._put(frame)
        if self._outbox.put_sample(_encoded(sample)):
            if self._dropped:
                lost = "1 sample was" if self._dropped == 1 else f"{self._dropped} samples were"
                text = f"{lost} dropped: gpuscope read too slowly"
                self._put(
                    frames.Event(
                        frames.HOST_ID,
                        "dropped",
                        time.monotonic_ns(),
                        text,
                        {"count": self._dropped},
                    )
                )
                self._dropped = 0
        else:
            self._dropped += 1
            self._assembler.stream.forget_reasons()
        for frame in after:
            self._put(frame)

    def _key_frame(self) -> None:
        self._behind = False
        key, definitions = self._assembler.stream.key_frame(time.monotonic_ns(), time.time())
        self._put(key)
        for definition in definitions:
            self._put(definition)

    def _put(self, frame: frames.Frame) -> None:
        if not self._outbox.put(_encoded(frame)):
            self._behind = True  # nothing may be lost silently: a key frame repeats everything

    def _write(self) -> None:
        try:
            self._outbox.run()
        except OSError as error:
            self.end(f"the viewer no longer accepts frames ({error.strerror})")
        else:
            self.end("the viewer no longer accepts frames")


def _encoded(frame: frames.Frame) -> bytes:
    """Return the frame's line, or, if it would be too long, a line that says so."""
    try:
        return encode(frame)
    except WireError as error:
        return encode(
            frames.Event(frames.HOST_ID, "problem", time.monotonic_ns(), f"not sent: {error}")
        )


def main(argv: Optional[List[str]] = None) -> NoReturn:
    """Run the agent on the standard streams.

    It ends with ``os._exit``, because a thread may hang in a driver call forever.
    """
    args = parse(argv)
    frames_fd = os.dup(1)
    os.dup2(2, 1)  # a stray print of any module must not break the stream
    serve(args, frames_fd)


def serve(args: Any, frames_fd: int, greeted: bool = False) -> NoReturn:
    """Run the agent with frames on ``frames_fd`` and requests on standard input."""
    outbox = Outbox(frames_fd)
    agent = Agent(
        args,
        outbox,
        Collector(args.hz, redact=not args.no_redact, directories=args.sockets),
        0,
        greeted,
    )
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda number, _: agent.end(f"signal {number}"))
    code = 1
    try:
        agent.leave(agent.run())
        code = 0
    except Exception as error:
        sys.stderr.write(f"gpuscope agent: {type(error).__name__}: {error}\n")
        agent.leave(f"the agent failed: {type(error).__name__}")
    finally:
        os._exit(code)
