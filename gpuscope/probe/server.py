"""The probe's thread: listens at the user's private socket, samples while somebody looks, sleeps otherwise."""

from __future__ import annotations

import atexit
import os
import select
import socket
import sys
import threading
import time
from typing import Any, Callable, Dict, Optional, Tuple

from ..wire import codec
from ..wire.frames import Bye, Error, Ping, Pong, Request, Result
from . import identity, rendezvous
from .clients import Client
from .on_import import debug
from .sampler import Sampler

MAX_CLIENTS = 16
CHECK_SECONDS = 3.0
"""How often the socket is checked to be still there: cleaners of /tmp remove what looks old."""
COST_SHARE = 0.005
"""Of one core, at most: after a sample that took longer to make, the next waits until its share is earned."""
BREATH_SECONDS = 0.02
BREATH_SHARE = 0.04
"""Pause between the parts of a sample, and at most this share of the interval between samples. While a part runs, the
trainer's threads wait for the interpreter's lock: short waits in several steps are not felt, one long one is."""


class Server:
    """``housekeeping`` is called every :data:`CHECK_SECONDS`, ``detach`` when a client asks for it."""

    def __init__(self, sampler: Sampler, housekeeping: Callable[[], Any], detach: Callable[[], None]) -> None:
        self._sampler = sampler
        self._housekeeping = housekeeping
        self._detach = detach
        self._clients: Dict[int, Client] = {}
        self._rest_until = 0.0
        self._running = True
        self._pid = os.getpid()
        self._listener: Optional[socket.socket] = None
        self._path = ""
        self._why = ""
        self._identity = (0, 0)
        self._wake: Tuple[int, int] = (-1, -1)
        self._wake_lock = threading.Lock()  # nobody may write to a descriptor that was closed and given to another
        self._marks: Dict[int, Tuple[int, int]] = {}  # of our descriptors: what the kernel says they are
        self._finalizer: Any = None
        self._thread = threading.Thread(target=self._run, name="gpuscope-probe", daemon=True)

    def start(self) -> None:
        """Raises :class:`rendezvous.Refused` where the place is not safe; nothing is left open then."""
        self._open()
        try:
            self._thread.start()
        except (OSError, RuntimeError):
            self._close()
            raise
        atexit.register(self.stop, "the program has come to its end")
        # A process of multiprocessing ends without atexit, but with its own finalizers.
        util: Any = sys.modules.get("multiprocessing.util")
        process: Any = sys.modules.get("multiprocessing.process")
        try:
            if util is not None and process.parent_process() is not None:
                self._finalizer = util.Finalize(None, self.stop, ("the program has come to its end",), exitpriority=0)
        except Exception:
            pass

    def _open(self) -> None:
        self._listener, self._path, self._identity = rendezvous.bind()
        self._mark(self._listener.fileno())
        try:
            self._wake = os.pipe()
            os.set_blocking(self._wake[1], False)
        except OSError as error:
            self._close()
            raise rendezvous.Refused(f"no descriptor is free: {error.strerror}") from None
        for number in self._wake:
            self._mark(number)

    def stop(self, why: str = "it was taken out") -> None:
        """End the thread and remove the socket. From any thread, the probe's own included; idempotent."""
        if os.getpid() != self._pid:
            return
        self._why = self._why or why
        self._running = False
        atexit.unregister(self.stop)
        if self._finalizer is not None:
            self._finalizer.cancel()
        if threading.current_thread() is self._thread:
            return  # its loop ends, and closes behind itself
        with self._wake_lock:
            try:
                if self._is_ours(self._wake[1]):
                    os.write(self._wake[1], b".")
            except OSError:
                pass
        self._thread.join(1.0)

    def abandon(self) -> None:
        """In a forked child: close the descriptors that came along; the thread did not. The path is the parent's."""
        self._running = False
        atexit.unregister(self.stop)
        self._wake_lock = threading.Lock()
        self._path = ""
        self._close()

    # ── the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            check = time.monotonic() + CHECK_SECONDS
            while self._running:
                self._turn(check)
                if time.monotonic() >= check:
                    check = time.monotonic() + CHECK_SECONDS
                    self._check_place()
                    self._housekeeping()
        except Exception as error:
            debug("the probe ends", error)
            self._why = f"it failed: {type(error).__name__}"
            self._detach()
        self._sampler.ledger.wanted = False
        try:
            for number, client in list(self._clients.items()):
                if self._is_ours(number):
                    client.send(Bye(self._why))
            self._close()
        except OSError as error:
            debug("while closing", error)

    def _turn(self, check: float) -> None:
        """Wait for whatever comes first, serve it, and send the samples that are due."""
        poll = select.poll()  # not select(): a trainer may have more than 1024 files open
        poll.register(self._wake[0], select.POLLIN)
        if self._listener is not None:
            poll.register(self._listener, select.POLLIN)
        for number, client in self._clients.items():
            poll.register(number, select.POLLIN | (select.POLLOUT if client.unsent else 0))
        due = [max(client.due, self._rest_until) for client in self._clients.values()]
        until = min([check, *due])
        events = poll.poll(max(0.0, until - time.monotonic()) * 1000 + 0.5)
        if self._robbed():
            return
        for number, event in events:
            found = self._clients.get(number)
            if found is not None:
                if event & select.POLLOUT:
                    found.flush()
                if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._serve(found)
            elif self._listener is not None and number == self._listener.fileno():
                self._accept()
        if self._running:
            self._sample()
        for number, client in list(self._clients.items()):
            if not client.alive:
                client.close()
                del self._clients[number]
        self._sampler.ledger.wanted = bool(self._clients)

    def _sample(self) -> None:
        now = time.monotonic()
        if now < self._rest_until:
            return
        # Those that are due within half a turn share this sample, so that many clients cost little more than one.
        fastest = max([client.hz for client in self._clients.values()] or [1.0])
        due = [client for client in self._clients.values() if client.due <= now + 0.5 / fastest]
        if not any(client.due <= now for client in due):
            return
        begin = time.thread_time()
        pause = min(BREATH_SECONDS, BREATH_SHARE / fastest)
        sample, reasons = self._sampler.tick(lambda: time.sleep(pause))
        shared: Dict[bytes, bytes] = {}
        for client in due:
            client.sample(sample, reasons, self._sampler.definitions, shared)
        self._rest_until = now + (time.thread_time() - begin) / COST_SHARE

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
            client.send(Bye(f"busy: {MAX_CLIENTS} others are watching already"))
            client.close()
            return
        client.send(self._sampler.hello(client.hz))
        self._clients[peer.fileno()] = client
        self._sampler.ledger.wanted = True

    def _serve(self, client: Client) -> None:
        for line in client.receive():
            try:
                frame = codec.decode(line)
            except codec.UnknownKind:
                continue
            except codec.WireError:
                client.bad_line()
                continue
            if isinstance(frame, Request):
                client.send(self._answer(client, frame))
            elif isinstance(frame, Ping):
                client.send(Pong(t=frame.t, m=time.monotonic_ns()))
            if not self._running:
                self._detach()
                return

    def _answer(self, client: Client, request: Request) -> Any:
        if request.r == "rate":
            hz = request.args.get("hz")
            if isinstance(hz, bool) or not isinstance(hz, (int, float)) or not hz > 0:
                return Error(request.id, "refused", "rate needs hz, a number above 0")
            return Result(request.id, {"hz": client.set_rate(float(hz))})
        if request.r == "environment":
            return Result(request.id, {"environment": identity.environment()})
        if request.r == "detach":
            self._running = False
            self._why = "detached on request"
            return Result(request.id, {})
        if request.r == "cancel":
            return Error(request.id, "gone", "nothing is in progress")
        return Error(request.id, "unsupported", f"this probe does not serve {request.r}")

    def _check_place(self) -> None:
        if self._listener is not None and rendezvous.is_ours(self._path, self._identity):
            return
        try:
            fresh = rendezvous.bind()
        except rendezvous.Refused as error:
            debug("the socket is gone and cannot be made again", error)
            return
        old = self._listener
        self._listener, self._path, self._identity = fresh
        if old is not None:
            old.close()
        self._mark(self._listener.fileno())

    # ── descriptors ────────────────────────────────────────────────────────────────────────────────────────────────
    # A trainer may close all descriptors, ours too (os.closerange), and the numbers then belong to files of its own: to
    # use or to close them would be to damage the trainer's. So each is looked at (1 µs) before it is used.

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
        """Whether a descriptor of ours was closed by somebody else: then all are let go, and opened anew."""
        numbers = [*self._wake, *self._clients]
        if self._listener is not None:
            numbers.append(self._listener.fileno())
        if all(self._is_ours(number) for number in numbers):
            return False
        with self._wake_lock:
            self._close_descriptors()
            if self._running:
                self._open()
        return True

    def _close_descriptors(self) -> None:
        """Those that are still ours; the others are forgotten, so that no destructor closes them either."""
        for client in list(self._clients.values()):
            client.alive = False
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
            try:
                os.unlink(self._path)
            except OSError:
                pass
        with self._wake_lock:
            self._close_descriptors()
