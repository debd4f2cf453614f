"""Make the picture of docs/notebook.md: cells of a notebook, on a light and on a dark page.

``python -m tests.notebook.picture`` rewrites ``docs/notebook.png``. The measured cell is executed
here by a real kernel; the waterfall is what ``%gpuscope`` shows of a recording from an H200.
"""

from __future__ import annotations

from html import escape

import nbclient
import nbformat

from gpuscope.doctor import live, report, table
from gpuscope.notebook import look
from gpuscope.notebook.markup import region
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.store.view import History
from gpuscope.wire.codec import WireError
from gpuscope.wire.recording import RecordingReader
from tests.recordings import ROOT, SHIPPED
from tests.tui.picture import png_of

RECORDING = SHIPPED / "h200-lab.gsr"
RECORDED_SECONDS = 55.0
TRAINING = """%%gpuscope
import torch
model = torch.nn.Linear(2048, 2048)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(20):
    model(torch.randn(8, 2048)).sum().backward()
    optimizer.step()"""
WIDTH, HEIGHT = 1560, 806
THEMES = (("#ffffff", "#1f1f1f", "#f5f5f5"), ("#111111", "#e0e0e0", "#212121"))
"""Page, text and input of JupyterLab's light and dark theme."""


def recorded() -> str:
    """What a cell shows of the recording at one moment."""
    store = Store()
    store.add_source("recording", "")
    first = None
    for line in RecordingReader(RECORDING):
        first = line.rx if first is None else first
        if line.rx - first > RECORDED_SECONDS:
            break
        try:
            store.apply("recording", decode(line.line), line.rx)
        except WireError:
            continue
    host = store.view().host
    assert host is not None

    def history(entity: int, column: str, seconds: float | None) -> History:
        return store.history("recording", entity, column, seconds)

    found = report.finish(live.examine(host, history), table.load())
    trainer = next(one for one in host.trainers if one.gone is None)
    return region(look.output(host, trainer.definition.pid, history, found, 100).html)


def executed(source: str) -> str:
    """What a kernel shows below a cell."""
    cells = [nbformat.v4.new_code_cell(one) for one in ("%load_ext gpuscope", source)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120).execute()
    [shown] = [one for one in notebook.cells[1].outputs if "text/html" in (one.get("data") or {})]
    return str(shown["data"]["text/html"])


def page(cells: list[tuple[str, str]], theme: tuple[str, str, str]) -> str:
    background, text, field = theme
    body = "".join(
        f'<pre style="background:{field};border:1px solid #8888;padding:6px;font-size:13px;'
        f'margin:8px 0">{escape(source)}</pre><div style="padding-left:8px">{output}</div>'
        for source, output in cells
    )
    return (
        f'<div style="background:{background};color:{text};width:{WIDTH // 2}px;float:left;'
        f'height:{HEIGHT}px;padding:4px 16px;box-sizing:border-box">{body}</div>'
    )


def main() -> None:
    cells = [("%gpuscope", recorded()), (TRAINING, executed(TRAINING))]
    pages = "".join(page(cells, theme) for theme in THEMES)
    png_of(
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}"><foreignObject width="100%" height="100%">'
        f"{pages}</foreignObject></svg>",
        ROOT / "docs" / "notebook.png",
    )


if __name__ == "__main__":
    main()
