"""Make pictures of terminal screens.

An app at a size becomes an SVG and then a PNG through headless chromium (rsvg misplaces text).

``python -m tests.tui.picture --gallery --sizes 80x24,120x40 --themes gpuscope-dark --out
/tmp/pictures``
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from textual.app import App

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip


async def svg_of(app: App[object], width: int, height: int, keys: tuple[str, ...] = ()) -> str:
    """The screen of ``app`` at a size as SVG, after ``keys``."""
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()
        return app.export_screenshot(simplify=True)


def png_of(svg: str, target: Path, scale: float = 1.0) -> None:
    """Write ``svg`` as a PNG. Raises RuntimeError where there is no chromium or it fails."""
    browser = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if browser is None:
        raise RuntimeError("no chromium on this machine")
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
    assert box is not None
    width, height = (int(float(side) * scale) + 1 for side in box.groups())
    # Textual names a font from the web; without a network the fall-back must be a real monospace
    # one.
    svg = svg.replace("Fira Code", "DejaVu Sans Mono")
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        style = f"<style>body{{margin:0}}svg{{width:{width}px;height:{height}px}}</style>"
        page.write_text(f"<!doctype html><meta charset=utf-8>{style}{svg}", encoding="utf-8")
        command = [
            browser,
            *FLAGS,
            f"--user-data-dir={scratch}/profile",
            f"--window-size={width},{height}",
            f"--screenshot={target}",
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, timeout=60)
    if done.returncode or not target.exists():
        raise RuntimeError(done.stderr.decode(errors="replace")[-500:])


def picture(
    make: Callable[[], App[object]],
    width: int,
    height: int,
    target: Path,
    keys: tuple[str, ...] = (),
) -> None:
    """``make()``'s screen at a size as a PNG at ``target``."""
    target.parent.mkdir(parents=True, exist_ok=True)
    png_of(asyncio.run(svg_of(make(), width, height, keys)), target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gallery", action="store_true", help="the gallery of all widgets")
    parser.add_argument("--sizes", default="80x24,120x40,200x60")
    parser.add_argument("--themes", default="gpuscope-dark,gpuscope-light")
    parser.add_argument("--no-color", action="store_true")
    parser.add_argument("--ascii", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("pictures"))
    options = parser.parse_args()
    from tests.tui.gallery import Gallery

    for theme in options.themes.split(","):
        for size in options.sizes.split(","):
            width, height = (int(side) for side in size.split("x"))
            name = (
                f"{theme}-{size}"
                + ("-mono" if options.no_color else "")
                + ("-ascii" if options.ascii else "")
            )

            def make(theme: str = theme) -> App[object]:
                if options.no_color:  # Textual takes it out of the environment when an app is made
                    os.environ["NO_COLOR"] = "1"
                return Gallery(theme, options.ascii)  # type: ignore[return-value]

            picture(make, width, height, options.out / f"{name}.png")
            print(options.out / f"{name}.png")


if __name__ == "__main__":
    main()
