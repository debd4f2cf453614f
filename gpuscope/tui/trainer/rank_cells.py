"""The cells of a rank that only a wide table of ranks has."""

from __future__ import annotations

from ...model.device_trainings import told_input, warned_starving
from ...store.view import DeviceView, HistoryOf, HostView, TrainerView, by_id
from ...text.units import amount_text, brief_duration_text, percent_text
from ..shared.job_rows import loss_piece
from ..widgets.table import Cell


def wide_cells(
    host: HostView, trainer: TrainerView, device: DeviceView | None, history: HistoryOf
) -> dict[str, Cell]:
    """Return its slowest steps, its loss and wait for data, and the load of its GPU and process."""
    cells: dict[str, Cell] = {}
    slow, loss = trainer.number("step_seconds_p95"), loss_piece(host, [trainer])
    share, _ = told_input(trainer)
    if slow is not None:
        cells["p95"] = [(brief_duration_text(slow), "muted")]
    if loss is not None:
        cells["loss"] = [loss]
    if share is not None:
        token = "warn" if warned_starving(host, trainer, history) else "muted"
        cells["input"] = [(percent_text(share, whole=True), token)]
    if device is not None:
        load, power = device.number("utilization_percent"), device.number("power_watts")
        if load is not None:
            cells["load"] = [(percent_text(load / 100, whole=True), "text")]
        if power is not None:
            cells["power"] = [(f"{power:.0f}W", "muted")]
    process = by_id(host.processes, trainer.process)
    if process is not None and process.gone is None:
        cpu, rss = process.number("cpu_percent"), process.number("rss_bytes")
        if cpu is not None:
            cells["cpu"] = [(percent_text(cpu / 100, whole=True), "muted")]
        if rss is not None:
            cells["rss"] = [(amount_text(rss), "muted")]
    return cells
