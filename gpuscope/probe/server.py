"""Run the probe's thread: listen at the user's private socket, and send samples to clients.

It sleeps while no client is connected.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import sys
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple, Union

from ..wire import codec, frames
from ..wire.frames import Bye, Credit, Error, Event, Ping, Pong, Request, Result
from . import records, rendezvous
from .blackbox import BlackBox
from .clients import ANSWER_BYTES, Client
from .long_requests import CLOSE_SECONDS
from .on_import import debug
from .requests import Requests
from .sampler import TRAINER_ID, Pause, Sampler
from .trackers import Trackers

MAX_CLIENTS = 16
CHECK_SECONDS = 3.0
"""Seconds between two checks that the socket still exists, because cleaners of /tmp remove old
files.
"""
COST_SHARE = 0.005
"""The most of one core that samples may use. After a slow sample, the next one waits until the mean
is below this share again.
"""
BREATH_SECONDS = 0.02
BREATH_SHARE = 0.04
"""The pause between the parts of a sample, and the largest share of a sampling interval for all
pauses. While a part runs, the trainer's threads wait for the interpreter lock. Several short waits
in different steps are not noticed; one long wait is.
"""
MAX_EVENTS = 64
"""Events queued for sending. Beyond this, the oldest are dropped and counted."""
NEWEST_MINUTES = 6
"""How many minutes of its time a trainer tells before its first sample: those that are judged."""
LOOK_SECONDS = (0.004, 0.1)
"""How soon to check again whether a client has read what was sent, at first and at most, because
poll does not report that.
"""


class Server:
    """The probe's thread and its socket.

    ``requests`` answers clients. ``housekeeping`` is called every :data:`CHECK_SECONDS`, and
    ``detach`` when a client asks for it.
    """

    def __init__(
        self,
        sampler: Sampler,
        requests: Requests,
        housekeeping: Callable[[], Any],
        detach: Callable[[], None],
    ) -> None:
        self._sampler = sampler
        self._requests = requests
        self._events: Deque[Event] = deque(maxlen=MAX_EVENTS)
        self._errands: Deque[Callable[[], None]] = deque(maxlen=MAX_EVENTS)
        self.keepers: List[Union[BlackBox, Trackers]] = []
        """Objects that get samples and events like clients do."""
        self._lost = 0  # events
        self._look = LOOK_SECONDS[0]
        self._held = False  # a large chunk waits for a client to read
        self._housekeeping = housekeeping
        self._detach = detach
        self._clients: Dict[int, Client] = {}
        self._rest_until = 0.0
        self._running = True
        self._detach_requested = False
        self._over = False  # the thread makes its last calls
        self._pid = os.getpid()
        self._listener: Optional[socket.socket] = None
        self._path = ""
        self._why = ""
        self._identity = (0, 0)
        self._wake: Tuple[int, int] = (-1, -1)
        # protects from writing to a descriptor that was closed and reused
        self._wake_lock = threading.Lock()
        self._rung = False  # whether there is news since the thread was last woken
        # what the kernel reports about our descriptors
        self._marks: Dict[int, Tuple[int, int]] = {}
        self._finalizer: Any = None
        requests.wake = self._ring
        self._thread = threading.Thread(target=self._run, name="gpuscope-probe", daemon=True)

    def start(self) -> None:
        """Open the socket and start the thread.

        Raises :class:`rendezvous.RendezvousError` if the directory is not safe; nothing is left
        open then.
        """
        self._open()
        try:
            self._thread.start()
        except (OSError, RuntimeError):
            self._close()
            raise
        atexit.register(self.stop, frames.PROGRAM_ENDED)
        # A process of multiprocessing ends without atexit, but runs its own finalizers.
        util: Any = sys.modules.get("multiprocessing.util")
        process: Any = sys.modules.get("multiprocessing.process")
        try:
            if util is not None and process.parent_process() is not None:
                self._finalizer = util.Finalize(
                    None, self.stop, (frames.PROGRAM_ENDED,), exitpriority=0
                )
        except Exception:
            pass

    def _open(self) -> None:
        self._listener, self._path, self._identity = rendezvous.bind()
        self._mark(self._listener.fileno())
        try:
            self._wake = os.pipe()
            os.set_blocking(self._wake[0], False)
            os.set_blocking(self._wake[1], False)
        except OSError as error:
            self._close()
            raise rendezvous.RendezvousError(f"no free file descriptor: {error.strerror}") from None
        for number in self._wake:
            self._mark(number)

    def explain_end(self, why: str) -> None:
        """Set the reason that clients get at the end, because the program is about to end."""
        self._why = self._why or why

    def stop(self, why: str = frames.PROBE_REMOVED) -> None:
        """End the thread and remove the socket.

        Any thread may call this, also the probe's own. A second call does nothing.
        """
        if os.getpid() != self._pid:
            return
        self._why = self._why or why
        self._running = False
        atexit.unregister(self.stop)
        if self._finalizer is not None:
            self._finalizer.cancel()
        if threading.current_thread() is self._thread:
            return  # its loop ends and closes everything
        with self._wake_lock:
            self._write_wake()
        self._thread.join(1.0 + (CLOSE_SECONDS if self._requests.acts.busy else 0.0))

    @property
    def watched(self) -> bool:
        return bool(self._clients) or self._requests.acts.busy

    def announce(self, event: Event) -> None:
        """Send an event to all clients.

        Any thread of the trainer may call this, also in a signal handler: it never blocks and never
        raises. Of more than :data:`MAX_EVENTS` at once the oldest are dropped, and counted.
        """
        self._lost += len(self._events) == MAX_EVENTS
        self._events.append(event)
        self._ring()

    def errand(self, call: Callable[[], None]) -> bool:
        """Have ``call``, which must not raise, run in the probe's thread soon.

        Return False if there is no thread to run it.
        """
        if (
            not self._running
            or not self._thread.is_alive()
            or threading.current_thread() is self._thread
        ):
            return False
        self._errands.append(call)
        if self._over:  # the thread ended since we looked: whoever removes the call first runs it
            try:
                self._errands.remove(call)
                return False
            except ValueError:
                return True
        self._ring()
        return True

    def _ring(self) -> None:
        """Wake the probe's thread.

        This never waits for the lock. Its holder wakes the thread once more, because the thread may
        have been woken before our news was there.
        """
        self._rung = True
        while self._rung and self._wake_lock.acquire(False):
            try:
                self._rung = False
                self._write_wake()
            finally:
                self._wake_lock.release()

    def _write_wake(self) -> None:
        try:
            if self._is_ours(self._wake[1]):
                os.write(self._wake[1], b".")
        except OSError:  # the pipe is full, so the thread will wake up anyway
            pass

    def abandon(self) -> None:
        """In a forked child: close the inherited descriptors; the thread does not exist there.

        The path belongs to the parent.
        """
        self._running = False
        atexit.unregister(self.stop)
        self._wake_lock = threading.Lock()
        self._requests.abandon()
        self._path = ""
        self._close()

    # ── the thread ────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        # threads that the trainer traces (coverage, a debugger) do not include ours
        sys.settrace(None)
        sys.setprofile(None)
        try:
            check = time.monotonic() + CHECK_SECONDS
            while self._running:
                self._turn(check)
                if time.monotonic() >= check:
                    check = time.monotonic() + CHECK_SECONDS
                    self._check_place()
                    self._housekeeping()
        except Exception as error:
            debug("the probe stops", error)
            self._why = f"it failed: {type(error).__name__}"
            self._detach()
        self._finish()

    def _finish(self) -> None:
        self._sampler.ledger.wanted = False
        try:
            self._requests.close(self._why)
        except Exception as error:
            debug("while ending what was under way", error)
        self._over = True
        try:
            self._run_errands()
            self._deliver()
            for number, client in list(self._clients.items()):
                if self._is_ours(number):
                    client.send(Bye(self._why))
            self._close()
        except OSError as error:
            debug("while closing", error)

    def _turn(self, check: float) -> None:
        """Wait for whatever comes first, handle it, and send the samples that are due."""
        poll = select.poll()  # not select(), because a trainer may have more than 1024 open files
        poll.register(self._wake[0], select.POLLIN)
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        for number, client in self._clients.items():
            poll.register(number, select.POLLIN | (select.POLLOUT if client.unsent else 0))
        due = [max(client.due, self._rest_until) for client in self._takers()]
        until = min([check, self._requests.acts.due(), self._requests.time.due, *due])
        if self._held:
            until = min(until, time.monotonic() + self._look)
        events = poll.poll(max(0.0, until - time.monotonic()) * 1000 + 0.5)
        # Before any call that lets go of the interpreter's lock: a training thread that was waiting
        # for it would be seen at what it does afterwards.
        self._requests.time.tick()
        if self._robbed():
            return
        if (self._wake[0], select.POLLIN) in events:
            os.read(self._wake[0], 512)
        for number, event in events:
            found = self._clients.get(number)
            if found is not None:
                if event & select.POLLOUT:
                    found.flush()
                if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._serve(found)
            elif self._listener is not None and number == self._listener.fileno():
                self._accept()
        self._requests.acts.expire(time.monotonic())
        self._run_errands()
        if self._running:
            self._sample()
        self._deliver()
        for number, client in list(self._clients.items()):
            if not client.alive:
                self._requests.acts.gone(client)
                self._let_go(client.socket)  # what it failed with may be another's descriptor
                del self._clients[number]
        self._sampler.ledger.wanted = bool(self._clients)

    def _run_errands(self) -> None:
        while self._errands:
            self._errands.popleft()()

    def _takers(self) -> List[Union[Client, BlackBox, Trackers]]:
        return [*self._clients.values(), *self.keepers]

    def _sample(self) -> None:
        now = time.monotonic()
        # Who has just come gets a sample whatever the last one has cost, all parts at once, and
        # what is known of the last minutes: each further wait for the interpreter takes seconds
        # where the training holds it for long.
        new = [client for client in self._clients.values() if client.is_new]
        if now < self._rest_until and not new:
            return
        # Clients that are due within half an interval share this sample, so that many cost little
        # more than one.
        fastest = max([client.hz for client in self._takers()] or [1.0])
        due = [taker for taker in self._takers() if taker.due <= now + 0.5 / fastest]
        if not any(taker.due <= now for taker in due):
            return
        begin = time.thread_time()
        breath = 0.0 if new else min(BREATH_SECONDS, BREATH_SHARE / fastest)
        sample, reasons = self._sampler.tick(Pause(breath))
        self._requests.recent.note(sample, self._sampler.definitions)
        shared: Dict[bytes, bytes] = {}
        told = [
            Event(TRAINER_ID, "time", time.monotonic_ns(), "", data)
            for data in (self._requests.time.told() if new else ())
        ]
        for client in new:  # before the sample, with which a single look is content
            client.is_new = False
            for event in told[-NEWEST_MINUTES:]:
                client.event(event, self._sampler.definitions)
        for taker in due:
            taker.sample(sample, reasons, self._sampler.definitions, shared)
        for client in new:
            # all of them: who keeps only so many events keeps the last ones
            for event in told if len(told) > NEWEST_MINUTES else ():
                client.event(event, self._sampler.definitions)
        rest = (time.thread_time() - begin) / COST_SHARE
        self._rest_until = max(self._rest_until, now + rest)

    def _deliver(self) -> None:
        """Deliver events to all clients, then what requests have to say.

        The latter are sent only after their client has read what came before. So samples come
        first, and nothing large delays the next one.
        """
        lost, self._lost = self._lost, 0
        for client in self._clients.values():
            client.lost += lost
        for _ in range(len(self._events)):  # more may arrive meanwhile, without end
            event = self._events.popleft()
            for taker in self._takers():
                taker.event(event, self._sampler.definitions)
        moved = self._held = False
        for client in list(self._clients.values()):
            acts = [act for act in self._requests.acts.of(client) if act.waiting]
            while acts and client.has_room():
                line = acts[0].next_line()
                if line is not None:
                    client.send_bytes(line, ANSWER_BYTES)
                    moved = True
                acts = [
                    *(act for act in acts[1:] if act.waiting),
                    *(act for act in acts[:1] if act.waiting),
                ]
            self._held = self._held or bool(acts)
        self._look = LOOK_SECONDS[0] if moved else min(2 * self._look, LOOK_SECONDS[1])

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()  # type: ignore[union-attr]
        except OSError:
            return
        if not rendezvous.peer_allowed(peer):
            peer.close()
            return
        client = Client(peer)
        self._mark(peer.fileno())
        if len(self._clients) >= MAX_CLIENTS:
            client.send(Bye(f"busy: {MAX_CLIENTS} viewers are already connected"))
            client.close()
            return
        hello = self._sampler.hello(client.hz)
        hello.requests = self._requests.names
        client.send(hello)
        self._clients[peer.fileno()] = client
        self._sampler.ledger.wanted = True

    def _serve(self, client: Client) -> None:
        for line in client.receive():
            try:
                frame = codec.decode(line)
            except codec.WireError:
                client.bad_line()
                continue
            if isinstance(frame, Request):
                client.answer(self._answer(client, frame))
            elif isinstance(frame, Credit):
                for act in self._requests.acts.of(client):
                    if act.id == frame.id:
                        act.allow(frame.n)
            elif isinstance(frame, Ping):
                client.send(Pong(t=frame.t, m=time.monotonic_ns()))
            if self._detach_requested:
                self._detach()
            if not self._running:  # also where the program ends meanwhile: then its black box stays
                return

    def _answer(self, client: Client, request: Request) -> Any:
        if request.r == "rate":
            hz = request.args.get("hz")
            if isinstance(hz, bool) or not isinstance(hz, (int, float)) or not hz > 0:
                return Error(request.id, "refused", "rate needs hz, a number above 0")
            return Result(request.id, {"hz": client.set_rate(float(hz))})
        if request.r == "detach":
            self._running, self._detach_requested = False, True
            self._why = frames.DETACHED
            return Result(request.id, {})
        if request.r == "cancel":
            return self._requests.cancel(request, client)
        return self._requests.answer(request, client, client.pid)

    def _check_place(self) -> None:
        if self._listener is not None and rendezvous.is_ours(self._path, self._identity):
            return
        try:
            fresh = rendezvous.bind()
        except rendezvous.RendezvousError as error:
            debug("the socket is gone and cannot be created again", error)
            return
        old = self._listener
        self._listener, self._path, self._identity = fresh
        if old is not None:
            self._let_go(old)
        self._mark(self._listener.fileno())

    # ── descriptors ───────────────────────────────────────────────────────────────────────────────
    # A trainer may close all descriptors, ours too (os.closerange). Their numbers may then be those
    # of its own files, which we would damage by using or closing them. So each descriptor is
    # checked (1 µs) before it is used.

    def _mark(self, number: int) -> None:
        found = os.fstat(number)
        self._marks[number] = found.st_dev, found.st_ino

    def _is_ours(self, number: int) -> bool:
        try:
            found = os.fstat(number)
        except OSError:
            return False
        return self._marks.get(number) == (found.st_dev, found.st_ino)

    def _robbed(self) -> bool:
        """Tell whether somebody else has closed a descriptor of ours.

        Then all are abandoned and opened again.
        """
        numbers = [*self._wake, *self._clients]
        if self._listener is not None:
            numbers.append(self._listener.fileno())
        if all(self._is_ours(number) for number in numbers):
            return False
        with self._wake_lock:
            self._close_descriptors()
            if self._running:
                self._open()
        if self._rung:
            self._ring()
        return True

    def _close_descriptors(self) -> None:
        """Close the descriptors that are still ours.

        The others are only forgotten, so that no destructor closes them either.
        """
        for client in list(self._clients.values()):
            client.alive = False
            self._requests.acts.gone(client)
            self._let_go(client.socket)
        self._clients.clear()
        if self._listener is not None:
            self._let_go(self._listener)
            self._listener = None
        wake, self._wake = self._wake, (-1, -1)
        for number in wake:
            if self._is_ours(number):
                os.close(number)
        self._marks.clear()

    def _let_go(self, held: socket.socket) -> None:
        if held.fileno() < 0 or self._is_ours(held.fileno()):
            held.close()
        else:
            held.detach()

    def _close(self) -> None:
        if self._path and rendezvous.is_ours(self._path, self._identity):
            records.remove(self._path)
        with self._wake_lock:
            self._close_descriptors()
