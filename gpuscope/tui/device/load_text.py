"""Say how much of a GPU works, and what that means."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ...model.device_state import HANGS, NO_PROGRESS, DeviceState
from ...model.device_trainings import TENSOR_IDLE_PERCENT
from ...store.view import DeviceView
from ...text import styled
from ...text.styled import Line
from ...text.units import percent_text
from ...wire.frames import Unknown
from ..shared.device_state_text import why_unread
from ..shared.fact_lines import LABEL, fact, facts
from ..widgets.bars import meter

BUSY, WORKING, LITTLE = 80.0, 50.0, TENSOR_IDLE_PERCENT
"""Percent: a GPU that is said to be busy; SMs or a pipe that work; a pipe that hardly does."""
DRAM_FULL = 60.0
"""The share of the memory's bandwidth from which on kernels wait for memory, not for arithmetic."""
GAUGES = (
    ("GPU-Util", "utilization_percent", "any kernel running"),
    ("SM active", "sm_active_percent", "SMs with work"),
    ("occupancy", "sm_occupancy_percent", "warps resident"),
    ("tensor", "tensor_active_percent", "tensor cores busy"),
    ("DRAM", "dram_active_percent", "bandwidth in use"),
)
PIPES = (
    ("FP32", "fp32_active_percent"),
    ("FP16", "fp16_active_percent"),
    ("FP64", "fp64_active_percent"),
    ("INT", "integer_active_percent"),
)
"""The pipes of the SMs other than the tensor cores, which share one line."""
NO_COURSES: Mapping[str, str] = MappingProxyType({})


def load_lines(
    device: DeviceView,
    cells: int,
    rows: int,
    glyphs: object,
    state: DeviceState | None = None,
    courses: Mapping[str, str] = NO_COURSES,
    replayed: bool = False,
) -> list[Line]:
    """Return what the load means, then gauges of what works how much, the most telling first.

    What a GPU does not tell is one line with its reason. ``state`` is the device's on its host.
    ``courses`` has the last minute of a column where there is no room for a chart.
    """
    out: list[Line] = []
    missing: dict[str, list[str]] = {}
    drawn = max((len(course) for course in courses.values()), default=0)
    bar = max(6, min(30, cells - LABEL - 6 - 22) - drawn)
    for label, column, words in GAUGES:
        value = device.number(column)
        if value is None:
            reading = device.reading(column)
            missing.setdefault(reading.text if isinstance(reading, Unknown) else "", []).append(
                label
            )
            continue
        token, hangs = "series3", state is not None and state.word in HANGS
        if column == "utilization_percent":
            starved = state is not None and state.word in NO_PROGRESS
            token = "muted" if hangs else "warn" if starved else "series1"
        pieces = [
            *meter(value, bar, token, glyphs, slim=True, idling=hangs),  # type: ignore[arg-type]
            *([(f" {courses[column]}", token)] if column in courses else []),
            (f" {percent_text(value / 100):>6}", "text"),
        ]
        out.append(fact(label, [*pieces, (f" {words}", "faint")]))
    pipes = [
        f"{label} {percent_text(value / 100)}"
        for label, column in PIPES
        if (value := device.number(column)) is not None
    ]
    meaning = what_it_means(device, state)
    lines = styled.hang_lines([fact("meaning", [(meaning, "accent")])], cells) if meaning else []
    out += facts("pipes", pipes, cells)
    kept = out[: max(4, rows - len(lines) - len(missing))]
    for text, labels in missing.items():
        kept += styled.hang_lines(
            [fact("–", [(f"{', '.join(labels)}: {why_unread(text, replayed)}", "faint")])], cells
        )
    return [*lines, *kept]


def what_it_means(device: DeviceView, state: DeviceState | None = None) -> str:
    """Return one sentence about what GPU-Util hides, "" where nothing can be said.

    A GPU whose job hangs is judged by that alone: the kernel of a collective runs until the last
    rank joins it.
    """
    if state is not None and state.word in HANGS:
        return f"{state.word} {state.reason}: the load is no progress"
    load, sm, tensor = (
        device.number(c)
        for c in ("utilization_percent", "sm_active_percent", "tensor_active_percent")
    )
    dram = device.number("dram_active_percent")
    if load is None:
        return ""
    if load < 1:
        return "nothing runs"
    if sm is None:
        return (
            "GPU-Util says only that some kernel is running; this GPU does not report how much "
            "of it that kernel uses"
        )
    runs, idle, works = (
        percent_text(load / 100),
        percent_text(1 - load / 100),
        percent_text(sm / 100),
    )
    if load >= BUSY and sm < WORKING:
        return (
            f"kernels run {runs} of the time, but keep only {works} of the SMs busy: they are "
            "too small or too few"
        )
    if load < BUSY:
        return f"idle {idle} of the time: it waits for input, the CPU or other GPUs"
    if tensor is None:
        return f"the SMs are busy {works} of the time"
    multiplies = percent_text(tensor / 100)
    if dram is not None and dram >= DRAM_FULL and tensor < WORKING:
        reads = percent_text(dram / 100)
        return (
            f"memory bound: DRAM {reads} busy, tensor cores {multiplies}; fused kernels move "
            "less data"
        )
    if tensor < LITTLE:
        return (
            f"SMs busy, tensor cores {multiplies}: matrix products in FP32, or almost none; "
            "try bf16 or TF32"
        )
    if tensor < WORKING:
        return f"SMs busy, tensor cores {multiplies} of the time: the rest is other work or waiting"
    return f"tensor cores busy {multiplies} of the time: mostly matrix products"


def in_few_words(device: DeviceView) -> str:
    """Return the same in at most 15 cells, without numbers.

    The words stay as they are while the numbers move.
    """
    load, sm, tensor = (
        device.number(c)
        for c in ("utilization_percent", "sm_active_percent", "tensor_active_percent")
    )
    dram = device.number("dram_active_percent")
    if load is None or sm is None or load < 1:
        return ""
    if load >= BUSY and sm < WORKING:
        return "mostly idle SMs"
    if load < BUSY:
        return "partly idle"
    if tensor is None:
        return ""
    if dram is not None and dram >= DRAM_FULL and tensor < WORKING:
        return "memory bound"
    return "tensor idle" if tensor < LITTLE else ""
