"""Run the exporter: follow a source, and serve or write its latest values.

Either Prometheus scrapes a port, or node_exporter reads a file.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ..errors import UserError
from ..exit_status import ExitStatus
from ..process import atomic_file
from ..store.source import Source
from ..store.store import Store
from ..wire.clean import clean
from .page import Memory, Page, SeriesLimits, draw
from .table import METRICS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

    from ..wire.frames import Frame

LOOK_SECONDS = 1.0
FIRST_SECONDS = 10.0
"""Seconds to wait for the very first reading before a file is written without it."""


class CannotExport(UserError):
    """The metrics cannot be served or written. The text says why, and the next command."""

    def __init__(self, what: str) -> None:
        # The text repeats words of the command line, which may contain line ends.
        super().__init__(clean(what))


class ExportMisused(CannotExport):
    """The command line is wrong on every machine: an error of usage."""

    exit_status = ExitStatus.USAGE


class Exporter(Collector):
    """Follow one source and keep its latest view.

    The event loop's thread feeds the store; a scrape sees the last complete view.
    """

    def __init__(self, source: Source, limits: SeriesLimits) -> None:
        self._source = source
        self._limits = limits
        self._store = Store()
        self._store.add_source(source.key, source.label, source.badge)
        self._view = self._store.view()
        self._memory = Memory()
        self._lock = threading.Lock()
        self.samples_seen = 0
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def collect(self) -> Iterator[Family]:
        """Yield the metrics of the latest view; prometheus_client calls this in any thread."""
        with self._lock:
            page = draw(self._view, self._memory, self._limits)
        yield from families(page)

    def describe(self) -> list[Family]:
        return []

    def text(self) -> bytes:
        """Return the whole page in Prometheus's text format."""
        return generate_latest(self.registry)

    def say(self) -> str:
        """Return why the source is not live, "" if it is."""
        host = self._view.host
        return (
            "" if host is None or host.link.state == "live" else host.link.text or host.link.state
        )

    async def follow(self) -> None:
        """Follow the source until :meth:`close`, or until it ends for good."""
        key = self._source.key

        def sink(frame: Frame, received: float) -> None:
            self._store.apply(key, frame, received)

        looking = asyncio.ensure_future(self._look())
        try:
            await self._source.run(sink, lambda link: self._store.set_link(key, link))
        finally:
            looking.cancel()
            self._refresh()

    async def close(self) -> None:
        await self._source.close()

    async def _look(self) -> None:
        while True:
            self._refresh()
            await asyncio.sleep(LOOK_SECONDS)

    def _refresh(self) -> None:
        view = self._store.view()
        with self._lock:
            self._view = view
            for host in view.hosts:
                self._memory.look(host)
                if host.sampled_seconds is not None:
                    self.samples_seen += 1


def families(page: Page) -> Iterator[Family]:
    """Yield prometheus_client's metrics in the order of the table, those that have samples."""
    for name, metric in METRICS.items():
        samples = page.samples.get(name)
        if not samples:
            continue
        kind = CounterMetricFamily if metric.counter else GaugeMetricFamily
        family = kind(name, metric.help, labels=metric.labels)
        for labels, value in samples.items():
            family.add_metric(labels, value)
        yield family


# ── where the page goes ─────────────────────────────────────────────────────────────────────────


def address(text: str, allow_remote: bool) -> tuple[str, int]:
    """Return the host and the port of ``HOST:PORT``.

    Raises :class:`ExportMisused` for text of another form. Raises :class:`CannotExport` for an
    unknown host, and for an address that other machines can reach unless the user has allowed that.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if (
        not colon
        or not host
        or not port.isascii()
        or not port.isdigit()
        or not 0 < int(port) < 65536
    ):
        raise ExportMisused(
            f"--listen needs HOST:PORT, not {text!r}. Example:  gpuscope export --listen "
            "127.0.0.1:9400"
        )
    try:
        found = {
            str(info[4][0]) for info in socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        }
        outside = [
            one for one in found if not ipaddress.ip_address(one.partition("%")[0]).is_loopback
        ]
    except (OSError, UnicodeError, ValueError):
        raise CannotExport(
            f"no such address: {host!r}. Example:  gpuscope export --listen 127.0.0.1:9400"
        ) from None
    if outside and not allow_remote:
        raise CannotExport(
            f"other machines can reach {text} and read the names of jobs, pods and scripts here, "
            f"without a password. If you want that:  gpuscope export "
            f"--listen {text} --allow-remote"
        )
    return host, int(port)


async def serve(exporter: Exporter, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises :class:`CannotExport` when the port cannot be opened or the source ends.
    """
    try:
        server, thread = start_http_server(port, host, exporter.registry)
    except OSError as error:
        at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        if error.errno == errno.EADDRINUSE:
            why = f"{at} is in use. To see by whom:  ss -ltnp 'sport = :{port}'    Another:"
            raise CannotExport(
                f"{why}  gpuscope export --listen {host}:{port + 1 if port < 65535 else 9400}"
            ) from None
        raise CannotExport(f"cannot listen at {at}: {error.strerror or error}") from None
    try:
        await _write_until_signal(exporter, None, 0.0)
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join(1.0)


async def write(exporter: Exporter, path: Path, interval: float) -> None:
    """Write ``path`` every ``interval`` seconds until SIGTERM or SIGINT, then remove it.

    The file is removed at the end because its values would be stale from then on. Raises
    :class:`CannotExport`.
    """
    try:
        await _write_until_signal(exporter, path, interval)
    finally:
        path.unlink(missing_ok=True)


async def once(exporter: Exporter) -> bytes:
    """Return the page after the first reading. Raises :class:`CannotExport` if none comes."""
    following = asyncio.ensure_future(exporter.follow())
    try:
        await _first(exporter, following)
        if exporter.say():
            raise CannotExport(f"nothing was read: {exporter.say()}")
        return exporter.text()
    finally:
        await exporter.close()
        await following


def put(path: Path, content: bytes) -> None:
    """Write the page to ``path`` atomically, readable by every user. Raises OSError.

    node_exporter runs as another user.
    """
    atomic_file.write(path, content, mode=0o644, shared=True)


async def _write_until_signal(exporter: Exporter, path: Path | None, interval: float) -> None:
    loop, signalled = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled.set)
    following = asyncio.ensure_future(exporter.follow())
    waiting = asyncio.ensure_future(signalled.wait())
    try:
        if path is not None:
            await _first(exporter, following)
        while not signalled.is_set():
            if path is not None:
                try:
                    await asyncio.to_thread(put, path, exporter.text())
                except OSError as error:
                    raise CannotExport(f"cannot write {path}: {error.strerror or error}") from None
            await asyncio.wait(
                {following, waiting}, timeout=interval or None, return_when=asyncio.FIRST_COMPLETED
            )
            if following.done() and not signalled.is_set():
                raise CannotExport(f"there is nothing left to export: {exporter.say()}")
    finally:
        waiting.cancel()
        await exporter.close()
        await following
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _first(exporter: Exporter, following: asyncio.Future[None]) -> None:
    """Wait for two samples, so that the page has rates too."""
    for _ in range(int(FIRST_SECONDS / 0.1)):
        if exporter.samples_seen >= 2 or following.done():
            return
        await asyncio.sleep(0.1)
