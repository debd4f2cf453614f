"""Where the processor time of a monitor goes, by thread and by function.

    python -m bench.monitors.profiling agent  --seconds 10 --out agent.json [--functions]
    python -m bench.monitors.profiling viewer --seconds 10 --out viewer.json [--functions]     (in a terminal)

Without ``--functions`` the program is not disturbed, and only the time of each thread is read. With
it every call is timed by the thread's own clock: shares are right, the sum is not. ``cProfile``
follows one thread only, and since Python 3.12 mixes them up.
"""  # noqa: E501

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

WARM_SECONDS = 5.0
TOP = 60


class Tracer:
    """Calls, own and whole time of every function, per thread.

    The tracing itself is not counted.
    """

    def __init__(self) -> None:
        self.tables: dict[str, dict[Any, list[int]]] = {}

    def enter_thread(self, frame: FrameType, event: str, arg: Any) -> None:
        """Start to measure a thread; for ``threading.setprofile``."""
        trace = self.of_thread(threading.current_thread().name)
        sys.setprofile(trace)
        trace(frame, event, arg)

    def of_thread(self, name: str) -> Any:
        """Return the function for ``sys.setprofile`` in a thread of this name."""
        table = self.tables.setdefault(name, {})
        stack: list[list[Any]] = []
        clock, lost = time.thread_time_ns, 0

        def trace(frame: FrameType, event: str, arg: Any) -> None:
            nonlocal lost
            entered = clock()
            now = entered - lost
            if event in ("call", "c_call"):
                key = frame.f_code if event == "call" else arg.__qualname__
                line = table.get(key)
                if line is None:
                    line = table[key] = [0, 0, 0, 0]
                line[0] += 1
                line[3] += 1
                stack.append([line, now, 0])
            elif stack:
                line, began, inside = stack.pop()
                spent = now - began
                line[1] += spent - inside
                line[3] -= 1
                if line[3] == 0:
                    line[2] += spent
                if stack:
                    stack[-1][2] += spent
            lost += clock() - entered

        return trace

    def forget(self) -> None:
        """Discard what was counted so far."""
        for table in self.tables.values():
            for line in list(table.values()):
                line[0] = line[1] = line[2] = 0

    def report(self, seconds: float) -> dict[str, list[list[Any]]]:
        """Return the functions of each thread, the one with the most own time first.

        A row is ``[function, calls a second, own ms a second, whole ms a second]``.
        """
        found = {}
        for name, table in self.tables.items():
            lines: list[list[Any]] = [
                [_name(key), calls / seconds, own / seconds / 1e6, whole / seconds / 1e6]
                for key, (calls, own, whole, _) in list(table.items())
                if calls
            ]
            own_first, whole_first = (
                sorted(lines, key=lambda line: -line[at])[:TOP] for at in (2, 3)
            )
            found[name] = own_first + [line for line in whole_first if line not in own_first]
        return found


def _name(key: Any) -> str:
    if isinstance(key, str):
        return key
    where = "/".join(key.co_filename.split("/")[-2:])
    return f"{where}:{key.co_firstlineno} {getattr(key, 'co_qualname', key.co_name)}"


def by_thread() -> dict[str, float]:
    """Return the processor seconds of each thread of this process so far."""
    found: dict[str, float] = {}
    for thread in threading.enumerate():
        try:
            spent = (
                int(Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text().split()[0])
                / 1e9
            )
        except OSError:
            continue
        found[thread.name] = found.get(thread.name, 0.0) + spent
    return found


class Measured:
    """A measurement that begins when it is made and ends with :meth:`write`."""

    def __init__(self, tracer: Tracer | None) -> None:
        self.tracer = tracer
        if tracer is not None:
            tracer.forget()
        self.began, self.threads, self.cpu = time.perf_counter(), by_thread(), time.process_time()

    def write(self, out: Path) -> None:
        cpu, seconds, now = (
            time.process_time() - self.cpu,
            time.perf_counter() - self.began,
            by_thread(),
        )
        found: dict[str, Any] = {
            "python": sys.version.split()[0],
            "seconds": seconds,
            "cpu_percent": cpu / seconds * 100,
            "threads_percent": {
                name: (v - self.threads.get(name, 0.0)) / seconds * 100 for name, v in now.items()
            },
        }
        if self.tracer is not None:
            found["functions"] = self.tracer.report(seconds)
        out.write_text(json.dumps(found, indent=1))


def agent(seconds: float, hz: float, out: Path, tracer: Tracer | None) -> None:
    """Run the collector in this process, and discard its frames."""
    from gpuscope.agent.main import Agent, parse
    from gpuscope.agent.outbox import Outbox
    from gpuscope.agent.picture import Collector

    requests, _held_open = os.pipe()
    running = Agent(
        parse(["--hz", f"{hz:g}", "--no-ping-timeout"]),
        Outbox(os.open(os.devnull, os.O_WRONLY)),
        Collector(hz),
        requests,
    )

    def measure() -> None:
        time.sleep(WARM_SECONDS)
        measured = Measured(tracer)
        time.sleep(seconds)
        measured.write(out)
        running.end("measured")

    threading.Thread(target=measure, name="measuring", daemon=True).start()
    if tracer is not None:
        threading.setprofile(tracer.enter_thread)
        sys.setprofile(tracer.of_thread("assembler"))
    running.run()
    sys.setprofile(None)
    os._exit(0)


def viewer(seconds: float, hz: float, out: Path, tracer: Tracer | None) -> None:
    """Run the screen in this terminal, with its agent as a child as usual."""
    from gpuscope.config import Settings
    from gpuscope.tui.app.app import GpuscopeApp
    from gpuscope.tui.app.launch import local_source, prepare_environment
    from gpuscope.tui.shell.session import Session

    prepare_environment(False)
    settings = Settings(rate_hz=hz)
    session = Session(make_source=lambda rate: local_source(rate, settings), settings=settings)
    app = GpuscopeApp(session)

    async def measure() -> None:
        await asyncio.sleep(WARM_SECONDS)
        if tracer is not None:
            sys.setprofile(tracer.of_thread("event loop"))
        measured = Measured(tracer)
        await asyncio.sleep(seconds)
        sys.setprofile(None)
        measured.write(out)
        app.leave()

    running: list[asyncio.Task[None]] = []

    async def begin() -> None:
        running.append(asyncio.create_task(measure()))

    app.call_later(begin)
    app.run(mouse=False)


def shown(found: dict[str, Any], lines: int = 25) -> str:
    """Return a report as text."""
    out = [
        f"{found['cpu_percent']:.2f} % of a core over {found['seconds']:.0f} s, Python "
        f"{found['python']}"
    ]
    out += [
        f"  {name}: {percent:.3f} %"
        for name, percent in sorted(found["threads_percent"].items(), key=lambda item: -item[1])
    ]
    for name, functions in found.get("functions", {}).items():
        out.append(f"  -- {name}: calls/s, own ms/s, whole ms/s")
        out += [
            f"     {c:8.1f} {own:8.3f} {whole:8.3f}  {what}"
            for what, c, own, whole in functions[:lines]
        ]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("agent", "viewer", "show"))
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--hz", type=float, default=1.0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--functions", action="store_true")
    args = parser.parse_args()
    if args.what == "show":
        print(shown(json.loads(args.out.read_text())))
        return
    {"agent": agent, "viewer": viewer}[args.what](
        args.seconds, args.hz, args.out, Tracer() if args.functions else None
    )


if __name__ == "__main__":
    main()
