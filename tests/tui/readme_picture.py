"""Make the README's pictures.

They are SVGs exported from the committed recordings, through the same app as ``gpuscope replay``.

``python -m tests.tui.readme_picture`` rewrites ``docs/*.svg``. ``--png DIR`` draws them as PNG too,
for looking at; ``--ledger FILE`` draws the lab as well, with runs that were measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import replace
from pathlib import Path

from gpuscope.config import Settings
from gpuscope.store.replay import ReplaySource
from gpuscope.tui.shell.app import GpuscopeApp
from gpuscope.tui.shell.session import Session
from gpuscope.tui.shell.state import ViewState
from tests.tui.picture import png_of

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "demos" / "recordings"


async def replayed(
    recording: Path, seconds: float, tab: str, size: tuple[int, int], theme: str, keys: str = ""
) -> str:
    """The screen ``tab`` as SVG, ``seconds`` into the recording and paused there."""
    source = ReplaySource(recording)
    source.pause()
    source.seek(seconds)
    session = Session(
        None,
        None,
        make_source=None,
        replay=source,
        settings=replace(Settings(), theme=theme),
        state=ViewState(),
    )
    app = GpuscopeApp(session, tab)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(1.0)
        await pilot.press(*keys)
        await pilot.pause(0.5)
        return app.export_screenshot(title="gpuscope", simplify=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--png", type=Path, help="also draw PNGs into this folder")
    parser.add_argument("--theme", default="dark", choices=("dark", "light", "ansi"))
    parser.add_argument("--size", default="120x36")
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument(
        "--ledger", type=Path, help="also draw the lab, with the runs of this ledger"
    )
    options = parser.parse_args()
    if options.ledger:
        os.environ["GPUSCOPE_LEDGER"] = str(options.ledger)
    width, height = map(int, options.size.split("x"))
    for name, recording, seconds, tab in (
        ("overview", "h200x2-ddp.gsr", 92.0, "overview"),
        ("memory", "h200-lab.gsr", 92.0, "memory"),
        ("doctor", "h200x2-stall.gsr", 70.0, "doctor"),
        *((("lab", "h200-lab.gsr", 92.0, "lab"),) if options.ledger else ()),
    ):
        svg = asyncio.run(
            replayed(RECORDINGS / recording, seconds, tab, (width, height), options.theme)
        )
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{name}.svg").write_text(svg, encoding="utf-8")
        if options.png:
            options.png.mkdir(parents=True, exist_ok=True)
            png_of(svg, options.png / f"{name}.png")


if __name__ == "__main__":
    main()
