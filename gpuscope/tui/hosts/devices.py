"""The table of GPUs below a list of hosts: those of all hosts where there is room for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...store.view import HistoryOf, HostView
from ...text.width import cells as text_cells
from ..overview.device_rows import columns, device_row
from ..overview.panel_rows import WIDE
from ..theme import Tokens
from ..widgets.last_seen import as_last_seen
from ..widgets.table import Column, TableRow

MOST_NAME_CELLS = 20


def device_table(
    hosts: Sequence[tuple[str, HostView]],
    history_of: Callable[[HostView], HistoryOf],
    tokens: Tokens,
    width: int,
) -> tuple[list[Column], list[TableRow]]:
    """Return the columns and the rows of the GPUs of these hosts, which have their names.

    Names stand before the GPUs where there are several hosts. What is not of now is grey.
    """
    several, wide = len(hosts) > 1, width >= WIDE
    out: list[TableRow] = []
    for name, host in hosts:
        current = host.link.state in ("live", "replay")
        first = True
        for device in host.devices:
            if device.gone is not None:
                continue
            row = device_row(host, device, tokens, history=history_of(host), wide=wide)
            row = row if current else as_last_seen(row)
            if several:
                named = [(name if first else "", "title" if current else "faint")]
                row = row._replace(key=f"{host.key} {row.key}", cells={**row.cells, "host": named})
            out.append(row)
            first = False
    if not out:
        return [], []
    cells = min(max(text_cells(name) for name, _ in hosts), MOST_NAME_CELLS) if several else 0
    placed = columns("index", out, width - 6 - cells - several, wide)
    host_column = [Column("host", "HOST", max(cells, len("HOST")))] if several else []
    return [*host_column, *placed], out
