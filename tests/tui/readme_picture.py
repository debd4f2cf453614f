"""Make the README's pictures.

Each screen is what the program shows of a committed recording or snapshot, or prints: SVGs drawn
through the same app as ``gpuscope replay``. The figures of the prediction are those of torch here.

``python -m tests.tui.readme_picture`` rewrites ``docs/*.svg``. ``--png DIR`` draws them as PNG too,
for looking at, with each scene of the moving one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from gpuscope.config import Settings
from gpuscope.store.replay import ReplaySource
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.file_app import FileApp
from gpuscope.tui.background.view_state import ViewState
from gpuscope.tui.shell.session import Session
from gpuscope.wire.recording import RecordingReader, RecordingWriter
from tests.recordings import ROOT, SHIPPED
from tests.tui.picture import png_of
from tests.tui.pilot import until
from tests.tui.screen_svg import Grid, Scene, grid_of_text, svg
from tests.tui.snapshots import grid

STALL, LAB = SHIPPED / "h200x2-stall.gsr", SHIPPED / "h200-lab.gsr"
# gpuscope record --redact --duration 75, beside it with OMP_NUM_THREADS=1:
# gpuscope run demos/pitfalls/slow_input.py
SLOW = ROOT / "tests" / "data" / "slow-input-cpu.gsr"
NAMES = {"script-1": "slow_input.py", "<path>": "slow_input.py", "host-1": "workstation"}
"""What that recording calls by other names, because it is redacted, and what it was."""
FAILING = "demos/snapshots/failing.pickle.gz"
WIDTH, HEIGHT = 122, 28
SCREENS = {
    "overview": (STALL, 75.0, "overview", "stalled:"),
    "doctor": (STALL, 75.0, "doctor", "Find out what that"),
    "memory": (LAB, 55.0, "memory", "nvidia-smi"),
    "slow": (SLOW, 45.0, "doctor", "DataLoader("),
}
"""The recording, the second of it, the tab, and what is waited for."""
WHAT_IF = f"snapshot {FAILING} --what-if expandable_segments:True"
PREDICT = "predict --model gpt-small --batch 64 --gpu 4090 --largest-batch --what-if"


def as_for_nobody(empty: str) -> None:
    """Draw times in UTC and without anybody's settings, so that pictures are the same for all."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ.update({f"XDG_{what}_HOME": empty for what in ("CONFIG", "DATA", "STATE", "CACHE")})


def named(recording: Path, path: Path) -> Path:
    """Write to ``path`` a recording with the names that redacting has replaced."""
    with RecordingWriter(path) as writer:
        for one in RecordingReader(recording).lines():
            line = one.line
            for redacted, name in NAMES.items():
                line = line.replace(redacted.encode(), name.encode())
            writer.write("node", one.rx, line)
    return path


async def replayed(recording: Path, seconds: float, tab: str, *wanted: str) -> Grid:
    """The cells of the screen ``tab``, ``seconds`` into the recording and paused there.

    ``wanted`` is waited for.
    """
    with tempfile.TemporaryDirectory() as folder:
        played = named(recording, Path(folder) / "named.gsr") if recording == SLOW else recording
        return await shown(ReplaySource(played), seconds, tab, *wanted)


async def shown(source: ReplaySource, seconds: float, tab: str, *wanted: str) -> Grid:
    """The cells of the screen ``tab``, so far into what is played and paused there."""
    source.pause()
    source.seek(seconds)
    session = Session(
        None, None, make_source=None, replay=source, settings=Settings(), state=ViewState()
    )
    session.doctor.prepare()
    app = GpuscopeApp(session, tab)
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        await until(pilot, "REPLAY", *wanted)
        await pilot.pause(1.5)  # charts are drawn less often than lines
        return grid(app)


async def snapshot(path: str, wanted: str) -> Grid:
    """The cells of the screen that ``gpuscope snapshot`` opens, once ``wanted`` stands there."""
    app = FileApp(Path(path))
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        await until(pilot, wanted)
        await pilot.pause(0.5)
        return grid(app)


def printed(command: str) -> Grid:
    """The cells of a terminal, as long as it takes, in which a command of gpuscope ran."""
    done = subprocess.run(
        [sys.executable, "-m", "gpuscope", *command.split()],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": str(WIDTH)},
    )
    return grid_of_text(f"$ gpuscope {command}\n{done.stdout}", WIDTH)


def page(lines: Grid, first: str, height: int = HEIGHT) -> Grid:
    """So many lines of what was printed, from the one that begins with ``first``."""
    starts = ["".join(char for char, _ in line).startswith(first) for line in lines]
    begin = starts.index(True)
    return lines[begin : begin + height]


def pictures() -> dict[str, list[Scene]]:
    """The scenes of each picture by its name."""
    screens = {name: asyncio.run(replayed(*screen)) for name, screen in SCREENS.items()}
    prediction = printed(PREDICT)
    hang = Scene(
        "Rank 1 hangs. In which line?",
        screens["overview"],
        5,
        r"stalled: rank 1 .*? waits for it at \S+ in \w+",
    )
    cause = Scene(
        "Why, and what to do about it",
        screens["doctor"],
        6,
        r"Hang: rank 1 is stuck at .*? in \w+",
    )
    memory = Scene(
        "Where is my VRAM? Every byte that nvidia-smi counts",
        screens["memory"],
        5,
        r"used \(= nvidia-smi\) .*?GiB",
    )
    slow = Scene(
        "Why is it slow? It waits for data (recorded on two cores, without a GPU)",
        screens["slow"],
        5,
        r"\S+ waits for input \d+ % of the last \d+ s",
    )
    full = Scene(
        "Out of memory on an H200: 4.12 GiB are free, but in pieces",
        asyncio.run(snapshot(FAILING, "largest free run")),
        4.5,
        r"largest free run .* %",
    )
    other_settings = Scene(
        "Would other settings of the allocator have saved it?",
        printed(WHAT_IF),
        4.5,
        "with expandable_segments this would have fit",
    )
    verdict = Scene(
        "Will it fit? Asked before anything touches a GPU",
        page(prediction, "$"),
        4.5,
        "Does not fit on 4090",
    )
    fixes = Scene(
        "What each fix would free, and what the GPU then needs",
        page(prediction, "reached in"),
        6,
        r"micro-batch 32 instead of 64 +fits",
    )
    left_out, answers = grid_of_text("…", WIDTH), page(prediction, "reached in", 15)
    return {
        "tour": [hang, cause, memory, full, other_settings, verdict, fixes],
        "overview": [hang],
        "doctor": [cause],
        "memory": [memory],
        "slow": [slow],
        "predict": [replace(verdict, grid=[*verdict.grid[:6], *left_out, *answers])],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--png", type=Path, help="also draw PNGs into this folder")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    options = parser.parse_args()
    os.chdir(ROOT)  # a path is drawn as it was given
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as empty:
        as_for_nobody(empty)
        drawn = pictures()
    for name, scenes in drawn.items():
        (options.out / f"{name}.svg").write_text(svg(scenes, WIDTH), encoding="utf-8")
        if options.png:
            options.png.mkdir(parents=True, exist_ok=True)
            for number, scene in enumerate(scenes):
                png_of(svg([scene], WIDTH), options.png / f"{name}-{number}.png", 1.4)


if __name__ == "__main__":
    main()
