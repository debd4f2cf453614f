"""Find the probes of trainers on this host and keep a connection to each.

Nothing here waits for a probe: sockets are non-blocking, so a slow, silent or hostile probe affects
only itself.
"""

from __future__ import annotations

import os
import select
import threading
import time
from dataclasses import dataclass, field
from typing import Callable, Dict, List, Optional, Sequence, Set, Tuple

from ..process.procfs import still_runs
from ..wire import frames
from . import containers, probe_sockets
from .probe_link import MAX_REASON_CHARS, Answer, ProbeEntity, ProbeLink
from .probe_sockets import Place, ProbeSocketRefused

OnAnswer = Callable[[ProbeLink, Answer], None]

SCAN_SECONDS = 1.0
MAX_LINKS = 512
MAX_LINKS_OF_ONE = 128
"""Connections to the probes of one other user, so that nobody uses up all of them."""
MAX_PROBLEMS_OF_ONE = 64
"""How many problems with the directories and probes of one user are reported, each once."""
SILENT_SECONDS = 5.0
EXIT_SECONDS = 5.0
"""Seconds to wait after a socket closed before its process is reported as still running.

A process with much GPU memory takes seconds to end.
"""
MAX_OUTLIVING = 256
"""How many processes are followed that have no probe any more, the newest ones."""
MAX_EXITS = 256
"""Of how many processes it is kept how they ended, the newest ones."""


@dataclass
class AllocatorReport:
    key: int  # the probe's id, unique within the link
    definition: frames.AllocDef
    reasons: Dict[str, frames.Unknown]
    readings: Dict[str, frames.Reading]
    rows: int  # the number of rows received; an increase means new readings
    read_seconds: float = 0.0  # when the last row was read, in monotonic seconds


@dataclass
class TrainerReport:
    """The state that one probe reported, and its events since the last look.

    ``link`` names the connection and is never reused. ``rows`` is the number of rows received, as
    for allocators.
    """

    link: int
    pid: Optional[int]  # None for a process of another pid namespace
    start: Optional[int]
    definition: frames.TrainerDef
    reasons: Dict[str, frames.Unknown]
    readings: Dict[str, frames.Reading]
    rows: int
    allocators: List[AllocatorReport] = field(default_factory=list)
    # allocator key, None the trainer
    events: List[Tuple[Optional[int], frames.Event]] = field(default_factory=list)


@dataclass
class _Retry:
    at: float
    delay: float


class Probes:
    """All probes of this host.

    :meth:`run` is the body of one thread; the other methods may be called from any thread.
    ``directories`` replaces the usual places. ``on_answer`` is called on the polling thread with
    each answer to a :meth:`request`, and with an error ``gone`` for every pending request of a
    probe that has gone.
    """

    def __init__(
        self, directories: Optional[Sequence[str]] = None, on_answer: Optional[OnAnswer] = None
    ) -> None:
        self._directories = directories
        self._on_answer: OnAnswer = on_answer or (lambda link, answer: None)
        self._containers = containers.SocketFinder()
        self._links: Dict[Place, ProbeLink] = {}
        self._by_name: Dict[int, ProbeLink] = {}
        self._retries: Dict[Place, _Retry] = {}
        self._problems: List[str] = []
        # Problems that were reported, by the uid of their owner.
        self._reported: Dict[int, Set[str]] = {}
        self._left_out: List[str] = []
        self._ended: List[Tuple[float, ProbeLink]] = []
        self._outliving: Dict[int, ProbeLink] = {}  # by pid, without a probe
        self.exits: Dict[Tuple[int, Optional[int]], str] = {}
        """How processes with a probe ended last, by pid and start, where the kernel tells it."""
        self._answers: List[Answer] = []  # answers of the link that is being served
        self._silent: Set[int] = set()
        self._lock = threading.RLock()
        self._last_id = 0
        self._hz = 0.0
        self._running = True
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self.unread: Optional[frames.Unknown] = None
        """Why the last search may lack probes of this host, None where it is complete."""
        self.scans = 0
        """The number of searches completed."""
        self.on_news: Callable[[], None] = lambda: None
        """Called on the polling thread when a probe first sends data."""
        self.on_exit: Callable[[int, int, int], None] = lambda pid, start, status: None
        """Called with how a process with a probe ended, where the kernel tells it."""

    # ── the thread ──

    def run(self) -> None:
        """Search and serve until :meth:`close`."""
        next_scan = 0.0
        while self._running:
            now = time.monotonic()
            if now >= next_scan:
                self.scan(now)
                next_scan = now + SCAN_SECONDS
            self.poll(next_scan - time.monotonic())
        with self._lock:
            for link in self._links.values():
                link.close("the agent ends")

    def close(self) -> None:
        self._running = False
        self._wake()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass

    def poll(self, seconds: float) -> None:
        """Serve the links for at most ``seconds``, or until something happened."""
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        by_fd: Dict[int, ProbeLink] = {}
        with self._lock:
            now = time.monotonic()
            for link in self._links.values():
                events = select.POLLOUT if link.wants_to_write else 0
                if link.readable_at() > now:
                    seconds = min(seconds, link.readable_at() - now)
                elif link.has_lines:
                    seconds = 0.0
                else:
                    events |= select.POLLIN
                by_fd[link.sock.fileno()] = link
                if events:  # otherwise poll would report its hang-up again and again
                    poller.register(link.sock.fileno(), events)
        ready = dict(poller.poll(max(0.0, seconds) * 1000 + 1))
        if self._wake_read in ready:
            os.read(self._wake_read, 512)
        for fd, link in by_fd.items():
            with self._lock:
                try:
                    self._serve(link, ready.get(fd, 0))
                except Exception as error:
                    # An error that one probe causes must not affect the others.
                    link.close(f"gpuscope failed on it: {type(error).__name__}: {error}")
                    self._drop(link, time.monotonic())
                answers, self._answers = self._answers, []
            # Without the lock, because the receivers of answers use locks of their own.
            for answer in answers:
                self._on_answer(link, answer)

    def _serve(self, link: ProbeLink, ready: int) -> None:
        now = time.monotonic()
        met, first = link.hello is not None, link.trainer is None or not link.trainer.readings
        if link.wants_to_write and ready & select.POLLOUT:
            link.write()
        if (
            not link.closed
            and link.readable_at() <= now
            and (ready & ~select.POLLOUT or link.has_lines)
        ):
            link.read(now, self._answers)
        link.check(now)
        if not link.closed and not met and link.hello is not None:
            self._ask_rate(link)
        if first and link.trainer is not None and link.trainer.readings:
            self.on_news()
        if link.closed:
            self._drop(link, now)

    def _drop(self, link: ProbeLink, now: float) -> None:
        key = next(key for key, known in self._links.items() if known is link)
        del self._links[key]
        del self._by_name[link.name]
        self._silent.discard(link.name)
        self._ended.append((now, link))
        if link.violated or link.hello is None:
            self._problem(link.owner, f"the probe of pid {link.pid} is ignored: {link.closed}")
        self._retries[key] = _Retry(now + (60.0 if link.violated else SCAN_SECONDS), SCAN_SECONDS)
        self._answers.extend(frames.Error(request, "gone", link.closed) for request in link.pending)

    # ── searching ──

    def scan(self, now: float) -> None:
        """Look for new sockets and connect to them."""
        seen: Set[Place] = set()
        here = probe_sockets.places(self._directories)
        elsewhere = self._containers.places(now) if self._directories is None else []
        self._left_out = [
            *here.left_out,
            *(self._containers.left_out if self._directories is None else []),
        ]
        for owner, paths in here.squatted.items():
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            self._problem(
                owner,
                f"{paths[0]}{more}: named for other users, but owned by uid {owner}: not "
                f"searched for trainers",
            )
        for path, owner in (*here.found, *elsewhere):
            try:
                with probe_sockets.Directory(path, owner) as directory:
                    self._scan_directory(path, directory, now, seen)
                    if directory.left_out:
                        self._left_out.append(f"{path} has {directory.left_out}")
            except FileNotFoundError:
                continue
            except ProbeSocketRefused as error:
                self._problem(owner, str(error))
            except OSError as error:
                self._problem(owner, f"{path} could not be searched for trainers: {error.strerror}")
        with self._lock:
            for place in [place for place in self._retries if place not in seen]:
                del self._retries[place]
            limits = dict.fromkeys(self._left_out)
            self.unread = frames.Unknown(frames.TOO_MANY, "; ".join(limits)) if limits else None
            self.scans += 1

    def _scan_directory(
        self, path: str, directory: probe_sockets.Directory, now: float, seen: Set[Place]
    ) -> None:
        for found in directory.sockets():
            seen.add(found.place)
            with self._lock:
                retry = self._retries.get(found.place)
                if found.place in self._links or (retry is not None and now < retry.at):
                    continue
                if self._is_full(directory.owner):
                    return
            try:
                connected = directory.connect(found)
            except ProbeSocketRefused as error:
                self._problem(directory.owner, f"{path}/{found.name}: {error}")
                delay = min(60.0, 2 * retry.delay if retry else SCAN_SECONDS)
                self._retries[found.place] = _Retry(now + delay, delay)
                continue
            if connected is not None:
                sock, pid = connected
                with self._lock:
                    self._last_id += 1
                    link = ProbeLink(
                        self._last_id, sock, pid, found.start if pid else None, now, directory.owner
                    )
                    self._links[found.place] = self._by_name[link.name] = link
                    self._retries.pop(found.place, None)

    def _is_full(self, owner: int) -> bool:
        """Whether no other probe of this user can be read; notes it."""
        own = sum(link.owner == owner for link in self._links.values())
        if len(self._links) >= MAX_LINKS:
            self._left_out.append(f"more than {MAX_LINKS} probes run here: the others are not read")
        elif own >= MAX_LINKS_OF_ONE and owner != os.geteuid():
            self._left_out.append(
                f"uid {owner} has more than {MAX_LINKS_OF_ONE} probes: the others are not read"
            )
        else:
            return False
        return True

    def _problem(self, owner: int, text: str) -> None:
        """Report a problem of ``owner`` once.

        The number of reported problems per owner is limited.
        """
        with self._lock:
            reported = self._reported.setdefault(owner, set())
            if text in reported or len(reported) > MAX_PROBLEMS_OF_ONE:
                return
            reported.add(text)
            if len(reported) > MAX_PROBLEMS_OF_ONE:
                text = (
                    f"more than {MAX_PROBLEMS_OF_ONE} problems with probes of uid {owner}: the "
                    f"others are not shown"
                )
            self._problems.append(text[:MAX_REASON_CHARS])

    # ── for the agent ──

    def take(self) -> Tuple[List[TrainerReport], Dict[int, str], List[str]]:
        """Return the trainers, the links that ended with the reason, and new problems.

        Links and problems are those since the previous call.
        """
        with self._lock:
            now = time.monotonic()
            reports = [
                self._report(link, link.trainer, now)
                for link in self._links.values()
                if link.trainer is not None
            ]
            # Asked once: a process that ends between two answers would be followed by nobody.
            gone = {link.name for _, link in self._ended if _is_gone(link)}
            ended_links = {
                link.name: _how_it_ended(link)
                for at, link in self._ended
                if now - at >= EXIT_SECONDS or link.name in gone
            }
            for _, link in self._ended:
                if link.pid is not None and link.trainer is not None and link.name not in gone:
                    self._outliving[link.pid] = link
                elif link.name in ended_links:
                    self._note_exit(link)
            self._ended = [(at, link) for at, link in self._ended if link.name not in ended_links]
            problems, self._problems = self._problems, []
            return reports, ended_links, problems

    @property
    def outliving(self) -> Set[int]:
        """Return the processes that still run although their probe has gone.

        They are followed to their end, because "it runs on" is soon not true any more: a process
        outlives its probe by seconds when it ends, and by hours when the probe was taken out.
        """
        with self._lock:
            for pid, link in list(self._outliving.items()):
                if _is_gone(link) or len(self._outliving) > MAX_OUTLIVING:
                    del self._outliving[pid]
                    self._note_exit(link)
            return set(self._outliving)

    def _note_exit(self, link: ProbeLink) -> None:
        """Keep how the process of a link ended, and let go of it."""
        status = _exit_status(link)
        known = _exit_reason(status)
        if known and link.pid is not None:
            kept = [*self.exits.items(), ((link.pid, link.start), known)]
            self.exits = dict(kept[-MAX_EXITS:])
        if status is not None and link.pid is not None and link.start is not None:
            self.on_exit(link.pid, link.start, status)
        if link.exit_watch is not None:
            link.exit_watch.close()

    def _report(self, link: ProbeLink, trainer: ProbeEntity, now: float) -> TrainerReport:
        assert isinstance(trainer.definition, frames.TrainerDef)
        allocators = []
        for key, entity in link.allocators.items():
            assert isinstance(entity.definition, frames.AllocDef)
            reasons = dict(entity.reasons)
            latest = (entity.readings, entity.rows, entity.read_seconds)
            allocators.append(AllocatorReport(key, entity.definition, reasons, *latest))
        events = [
            (None if event.id == link.trainer_id else event.id, event) for event in link.events
        ]
        link.events.clear()
        silent = now - link.last_heard_at > max(SILENT_SECONDS, 3 / self._hz if self._hz else 0.0)
        if silent != (link.name in self._silent):
            (self._silent.add if silent else self._silent.discard)(link.name)
            text = "the probe answers again"
            if silent:
                text = (
                    f"the probe has been silent for {now - link.last_heard_at:.0f} s: "
                    "its trainer is stopped or busy in C code"
                )
            event = frames.Event(0, "problem" if silent else "note", time.monotonic_ns(), text)
            events.append((None, event))
        definition, reasons = trainer.definition, dict(trainer.reasons)
        return TrainerReport(
            link.name,
            link.pid,
            link.start,
            definition,
            reasons,
            trainer.readings,
            trainer.rows,
            allocators,
            events,
        )

    @property
    def connecting(self) -> bool:
        """A probe is linked whose trainer has not sent a row yet."""
        with self._lock:
            return any(
                link.trainer is None or not link.trainer.readings for link in self._links.values()
            )

    def set_rate(self, hz: float) -> None:
        """Ask every probe, also those to come, for this many samples a second."""
        with self._lock:
            self._hz = hz
            for link in self._links.values():
                if link.hello is not None:
                    self._ask_rate(link)
        self._wake()

    def _ask_rate(self, link: ProbeLink) -> None:
        if self._hz:
            self._last_id += 1
            link.send(frames.Request("rate", self._last_id, {"hz": self._hz}))

    def request(self, link_name: int, request: frames.Request) -> Tuple[int, str]:
        """Send a request to a probe under a new id.

        Return ``(id, "")``, or ``(0, reason)`` when it could not be sent.
        """
        with self._lock:
            link = self._by_name.get(link_name)
            if link is None or link.hello is None:
                return 0, "its probe is no longer connected"
            if request.r not in link.hello.requests:
                return 0, f"the probe of this trainer does not offer {request.r}"
            self._last_id += 1
            mine = frames.Request(request.r, self._last_id, request.args, request.deadline)
            if not link.send(mine):
                return (
                    0,
                    "the probe does not read its requests: its trainer is stopped or holds the GIL",
                )
            link.pending.add(mine.id)
        self._wake()
        return mine.id, ""

    def send(self, link_name: int, frame: frames.Frame) -> None:
        """Send a frame that nobody answers."""
        with self._lock:
            link = self._by_name.get(link_name)
            if link is not None:
                link.send(frame)
        self._wake()

    def cancel(self, link_name: int, request: int) -> None:
        """Ask a probe to give up a request, and wait no longer for its answer."""
        with self._lock:
            link = self._by_name.get(link_name)
            if link is not None:
                link.pending.discard(request)
                self._last_id += 1
                link.send(frames.Request("cancel", self._last_id, {"id": request}))
        self._wake()


def _how_it_ended(link: ProbeLink) -> str:
    """Return how a trainer ended, as far as this process can see it.

    The kernel does not tell everybody its exit code, and a probe says more of an exception.
    """
    if link.pid is None:
        return "its probe is gone: " + link.closed
    if not _is_gone(link):
        return f"the probe is gone ({link.closed}); the process continues"
    if link.sent_bye and link.closed != frames.PROGRAM_ENDED:
        return f"{frames.EXITED}{link.closed}"  # it says more than an exit code
    known = _exit_reason(_exit_status(link))
    if known:
        return known
    return f"{frames.EXITED}{link.closed}" if link.sent_bye else frames.NO_LAST_WORDS


def _exit_reason(status: Optional[int]) -> str:
    """Return how a process ended by its status, "" where the kernel tells none."""
    if status is None:
        return ""
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    code = os.WEXITSTATUS(status)
    return f"{frames.EXITED}{f'exit code {code}' if code else frames.PROGRAM_ENDED}"


def _exit_status(link: ProbeLink) -> Optional[int]:
    return link.exit_watch.status() if link.exit_watch is not None else None


def _is_gone(link: ProbeLink) -> bool:
    return link.pid is not None and not still_runs(link.pid, link.start)
