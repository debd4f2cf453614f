"""Answer the viewer's requests, or pass them on to a probe.

Each is one line of JSON on standard input.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Sequence, Union

from .. import __version__
from ..collect.probe_link import Answer, ProbeLink
from ..collect.trainers import Probes
from ..wire import frames
from ..wire.blobs import WINDOW_CHUNKS
from ..wire.codec import WireError, decode, encode
from .hello import RELAYED
from .inject_requests import Injections

if TYPE_CHECKING:
    from .device_workers import DeviceWorker

MIN_RATE_HZ = 0.1
MAX_VARIABLES = 64
MAX_VARIABLE_CHARS = 512
MAX_DEADLINE_SECONDS = 3600.0


@dataclass
class _Relay:
    viewer_id: int
    name: str
    link: int
    deadline: float
    chunks: int = WINDOW_CHUNKS
    """How many more chunks of a blob the viewer has allowed."""


class Requests:
    """Reads requests from ``fd`` in a thread of its own.

    ``put`` takes an encoded line. ``on_rate`` and ``on_end`` are called for the agent.
    """

    def __init__(
        self,
        fd: int,
        put: Callable[[bytes], Any],
        trainers: Mapping[int, int],
        facts: Callable[[], Dict[str, Any]],
        devices: Callable[[], Sequence[DeviceWorker]],
        on_rate: Callable[[float], None],
        on_end: Callable[[str], None],
        redact: bool = True,
    ) -> None:
        self._last_data_at = time.monotonic()  # when data last came
        self._fd = fd
        self._put = put
        self._trainers = trainers
        self._facts = facts
        self._devices = devices
        self._on_rate = on_rate
        self._on_end = on_end
        self._probes: Optional[Probes] = None
        self._relays: Dict[int, _Relay] = {}  # by the id that the probe uses
        self._lock = threading.RLock()
        self._redact = redact
        self._injections = Injections(self._answer, redact)
        self._reader = threading.Thread(target=self._read, name="requests", daemon=True)

    def start(self, probes: Probes) -> None:
        self._probes = probes
        self._reader.start()

    def silent(self, seconds: float) -> bool:
        """Whether no data has come for this long.

        Data that waits to be read counts, as long as its sender exists. After the whole process was
        stopped (SIGSTOP, a frozen container), the caller may run again before the thread that
        reads.
        """

        def quiet() -> bool:
            return time.monotonic() - self._last_data_at > seconds

        if not quiet():
            return False
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        waits = any(
            event & select.POLLIN and not event & select.POLLHUP for _, event in poll.poll(0)
        )
        return quiet() and not (waits and self._reader.is_alive())

    def _read(self) -> None:
        buffer = bytearray()
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        while True:
            try:
                poll.poll()
                # removed only after :meth:`silent` can see that data came
                self._last_data_at = time.monotonic()
                data = os.read(self._fd, 1 << 16)
            except OSError as error:
                self._on_end(f"standard input failed: {error.strerror}")
                return
            if not data:
                self._on_end("standard input was closed")
                return
            buffer += data
            *lines, rest = buffer.split(b"\n")
            buffer = rest
            if len(buffer) > frames.MAX_LINE_BYTES:
                self._on_end("a line on standard input is too long")
                return
            for line in lines:
                if line.strip():
                    self._handle(bytes(line))

    def _handle(self, line: bytes) -> None:
        """Answer one line. A line that is not a request gets an error with id 0."""
        try:
            frame = decode(line)
        except WireError as error:
            self._answer(frames.Error(0, "refused", f"not a request: {error}"))
            return
        if isinstance(frame, frames.Ping):
            self._answer(frames.Pong(frame.t, time.monotonic_ns()))
        elif isinstance(frame, frames.Credit):
            self._credit(frame)
        elif isinstance(frame, frames.Request):
            self._request(frame)

    def _answer(self, frame: frames.Frame) -> None:
        self._put(encode(frame))

    def _refuse(self, request: frames.Request, code: str, reason: str) -> None:
        self._answer(frames.Error(request.id, code, reason))

    def _request(self, request: frames.Request) -> None:
        if request.r == "cancel":
            self._cancel(request)
        elif "trainer" in request.args:
            self._relay(request)
        elif request.r == "rate":
            hz = request.args.get("hz")
            if (
                isinstance(hz, bool)
                or not isinstance(hz, (int, float))
                or not MIN_RATE_HZ <= hz <= frames.MAX_RATE_HZ
            ):
                self._refuse(
                    request,
                    "refused",
                    f"hz must be a number from {MIN_RATE_HZ:g} to {frames.MAX_RATE_HZ:g}",
                )
                return
            self._on_rate(float(hz))
            self._answer(frames.Result(request.id, {"hz": float(hz)}))
        elif request.r == "inject":
            self._injections.request(request)
        elif request.r == "signal":
            from . import signals

            self._answer(signals.answer(request))
        elif request.r == "recent":
            self._apart(self._past, request)
        elif request.r == "holders":
            self._apart(self._holders, request)
        elif request.r == "environment" and "pid" in request.args:
            self._answer(process_environment(request))
        elif request.r == "environment" and "slurm_job" in request.args:
            self._apart(self._slurm, request)
        elif request.r == "environment" and request.args.get("of") == "host":
            self._apart(self._host, request)
        elif request.r == "environment":
            self._answer(frames.Result(request.id, environment(self._facts())))
        elif request.r in RELAYED:
            self._refuse(request, "refused", f"{request.r} needs args.trainer: the id of a trainer")
        else:
            self._refuse(request, "unsupported", f"this agent does not offer {request.r}")

    def _apart(
        self, ask: Callable[[frames.Request], frames.Frame], request: frames.Request
    ) -> None:
        """Answer in a separate thread, because the driver, Slurm and torch take their time."""
        threading.Thread(
            target=lambda: self._answer(ask(request)), name=request.r, daemon=True
        ).start()

    def _slurm(self, request: frames.Request) -> frames.Frame:
        from ..collect.slurm import job_end

        end = job_end(str(request.args["slurm_job"]))
        known = not isinstance(end, frames.Unknown)
        return frames.Result(request.id, {"slurm_end": end} if known else vars(end))

    def _host(self, request: frames.Request) -> frames.Frame:
        from . import environment_requests

        return environment_requests.answer(request)

    def _past(self, request: frames.Request) -> frames.Frame:
        from . import device_past

        return device_past.answer(request, self._devices())

    def _holders(self, request: frames.Request) -> frames.Frame:
        from . import holding

        return holding.answer(request, self._redact)

    # ── to a probe and back ──

    def _relay(self, request: frames.Request) -> None:
        trainer = request.args["trainer"]
        link = self._trainers.get(trainer) if isinstance(trainer, int) else None
        if request.r not in RELAYED:
            self._refuse(request, "unsupported", f"a probe does not offer {request.r}")
        elif link is None or self._probes is None:
            self._refuse(request, "gone", "no trainer with this id has a probe")
        else:
            with self._lock:
                running = next(
                    (
                        one
                        for one in self._relays.values()
                        if one.link == link and one.name in frames.EXCLUSIVE
                    ),
                    None,
                )
                if request.r in frames.EXCLUSIVE and running is not None:
                    self._refuse(
                        request,
                        "busy",
                        f"busy with request {running.viewer_id} ({running.name}) of this viewer",
                    )
                    return
                deadline = min(max(request.deadline, 0.0), MAX_DEADLINE_SECONDS)
                args = {name: value for name, value in request.args.items() if name != "trainer"}
                number, reason = self._probes.request(
                    link, replace(request, args=args, deadline=deadline)
                )
                if not number:
                    self._refuse(request, "unsupported" if "offer" in reason else "gone", reason)
                    return
                # A second after the deadline, because the probe knows better why it did not finish
                # in time.
                self._relays[number] = _Relay(
                    request.id, request.r, link, time.monotonic() + deadline + 1.0
                )

    def on_answer(self, link: ProbeLink, answer: Answer) -> None:
        """Pass on an answer of a probe, in the thread that reads it."""
        with self._lock:
            relay = self._relays.get(answer.id)
            if relay is None or relay.link != link.name:
                return
            if isinstance(answer, frames.Blob):
                relay.chunks -= 1
                if relay.chunks < 0:
                    self._end(answer.id, "failed", "the probe sent more than allowed")
                    return
            if isinstance(answer, (frames.Result, frames.Error)):
                del self._relays[answer.id]
        try:
            self._answer(replace(answer, id=relay.viewer_id))
        except WireError as error:
            self._answer(
                frames.Error(
                    relay.viewer_id, "failed", f"the probe's answer cannot be passed on: {error}"
                )
            )

    def _credit(self, credit: frames.Credit) -> None:
        with self._lock:
            for number, relay in self._relays.items():
                if relay.viewer_id == credit.id and self._probes is not None:
                    relay.chunks += min(max(credit.n, 0), 1024)
                    self._probes.send(relay.link, frames.Credit(number, credit.n))

    def _cancel(self, request: frames.Request) -> None:
        """Cancel the request ``args.id``.

        This is answered at once, whatever the probe still does.
        """
        wanted = request.args.get("id")
        with self._lock:
            numbers = [
                number for number, relay in self._relays.items() if relay.viewer_id == wanted
            ]
            for number in numbers:
                self._end(number, "cancelled", "cancelled by the viewer")
        if numbers or self._injections.cancel(wanted):
            self._answer(frames.Result(request.id))
        else:
            self._refuse(request, "gone", "no such request is running")

    def _end(self, number: int, code: str, reason: str) -> None:
        relay = self._relays.pop(number)
        if self._probes is not None:
            self._probes.cancel(relay.link, number)
        self._answer(frames.Error(relay.viewer_id, code, reason))

    def expire(self, now: float) -> None:
        """Answer for probes that did not within the deadline."""
        with self._lock:
            for number in [
                number for number, relay in self._relays.items() if now > relay.deadline
            ]:
                self._end(
                    number,
                    "timeout",
                    "the probe did not answer in time: its trainer is stopped or busy in C code",
                )


def environment(facts: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the part of the agent's environment that may leave the host.

    These are versions and the variables on an allow-list, never all variables.
    """
    names = sorted(name for name in os.environ if _allowed(name))[:MAX_VARIABLES]
    return {
        "gpuscope": __version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "executable": sys.executable[:MAX_VARIABLE_CHARS],
        **facts,
        "environment": {name: os.environ[name][:MAX_VARIABLE_CHARS] for name in names},
    }


def process_environment(request: frames.Request) -> Union[frames.Result, frames.Error]:
    """Answer ``environment`` of a process (``pid``, ``start``).

    The answer has the variables on an allow-list, and how many more there are.
    """
    from ..collect.process_context import environment_of
    from ..process.procfs import start_ticks

    pid, start = request.args.get("pid"), request.args.get("start")
    if not isinstance(pid, int) or isinstance(pid, bool) or pid < 1:
        return frames.Error(request.id, "refused", "environment needs args.pid to be a number")
    environment = environment_of(pid)
    # checked after the reading, so that the data is that of the process that was meant
    if start is None or start_ticks(pid) != start:
        return frames.Error(request.id, "gone", f"pid {pid} now belongs to another process")
    if isinstance(environment, frames.Unknown):
        return frames.Error(
            request.id, "gone" if environment.code == frames.LOST else "refused", environment.text
        )
    return frames.Result(request.id, {"environment": environment[0], "others": environment[1]})


def _allowed(name: str) -> bool:
    if name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"):
        return True
    if name in ("SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"):
        return True
    return name.startswith("NCCL_") or (name.startswith("PYTORCH_") and name.endswith("ALLOC_CONF"))
