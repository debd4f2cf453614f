"""A viewer that measures itself: ``python -m bench.fleet.viewer FOLDER SECONDS OUT [--no-screen]``.

It watches an agent for each file of lines in FOLDER. It writes to OUT its processor time, the
number of frames, and how late its event loop was.
"""

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
from pathlib import Path

from gpuscope.store.store import Store
from gpuscope.tui.background.sources import Hosts
from tests.fakes import fleet

TICK_SECONDS = 0.01
WARM_SECONDS = 8.0


def sources(folder: Path) -> Hosts:
    """Return an agent for each file, at 1 Hz, no two of them at the same time."""
    files = sorted(folder.glob("*.lines"))
    return Hosts(
        [
            fleet.agent(path, path.stem, 1.0, number / len(files))
            for number, path in enumerate(files)
        ]
    )


class Meter:
    """Measures the delay of the loop, processor time and frames between ``begin`` and ``end``."""

    def __init__(self) -> None:
        self.frames = 0
        self._late: list[float] = []

    async def run(self, seconds: float) -> dict[str, float]:
        frames, cpu, began = self.frames, time.process_time(), time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            await asyncio.sleep(TICK_SECONDS)
            self._late.append(time.perf_counter() - now - TICK_SECONDS)
        spent, elapsed = time.process_time() - cpu, time.perf_counter() - began
        frames = self.frames - frames
        cuts = statistics.quantiles(self._late, n=100)
        return {
            "cpu_percent": spent / elapsed * 100,
            "frames_per_second": frames / elapsed,
            "cpu_us_per_frame": spent / max(frames, 1) * 1e6,
            "lag_p50_ms": cuts[49] * 1e3,
            "lag_p99_ms": cuts[98] * 1e3,
            "lag_max_ms": max(self._late) * 1e3,
        }


async def decode_only(folder: Path, seconds: float) -> dict[str, float]:
    """Read, decode and keep the frames, but draw nothing."""
    store, meter = Store(), Meter()

    def hear(key: str, frame: object, received: float) -> None:
        meter.frames += 1
        store.apply(key, frame, received)  # type: ignore[arg-type]

    running = asyncio.create_task(sources(folder).run(store, hear, store.set_link))
    await asyncio.sleep(WARM_SECONDS)
    gc.freeze()
    found = await meter.run(seconds)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return found


def with_screen(folder: Path, seconds: float, out: Path) -> None:
    """Run the real application in this terminal."""
    from gpuscope.tui.app.app import GpuscopeApp
    from gpuscope.tui.app.launch import prepare_environment
    from gpuscope.tui.shell.session import Session

    prepare_environment(False)
    session, meter = Session(make_hosts=lambda hz: sources(folder)), Meter()
    hear = session._hear

    def counted(key: str, frame: object, received: float) -> None:
        meter.frames += 1
        hear(key, frame, received)  # type: ignore[arg-type]

    session._hear = counted  # type: ignore[method-assign, assignment]
    app = GpuscopeApp(session)

    async def measure() -> None:
        await asyncio.sleep(WARM_SECONDS)
        found = await meter.run(seconds)
        found["on_fleet"] = float(app.main.tab == "fleet")
        out.write_text(json.dumps(found))
        app.leave()

    async def begin() -> None:
        measuring.append(asyncio.create_task(measure()))

    measuring: list[asyncio.Task[None]] = []
    app.call_later(begin)
    app.run(mouse=False)


def main() -> None:
    folder, seconds, out = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    if "--no-screen" in sys.argv:
        out.write_text(json.dumps(asyncio.run(decode_only(folder, seconds))))
    else:
        with_screen(folder, seconds, out)


if __name__ == "__main__":
    main()
