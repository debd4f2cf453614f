"""What the rules looked at, with the figures of now: what was found fine, and how far it is so.

Each area has the readings that its rules judge. A reading that is not there is said to be unknown,
with its reason, and its area is then not called fine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from ...model.device_state import mute, slowed
from ...model.device_trainings import tensor_idle, told_input
from ...model.memory_room import MemoryRoom, rooms
from ...model.ranks import name_of, names_of, subject_of
from ...model.reading_age import marked, old_seconds
from ...model.stalls import is_stalled
from ...model.step_time import MIN_STEPS, warmed_up
from ...store.view import by_id
from ...text.ranges import interval_text, ranges_text
from ...text.units import age_text, bytes_text, duration_text, percent_text
from ...wire.frames import Unknown

if TYPE_CHECKING:
    from ...store.view import DeviceView, Entity, HistoryOf, HostView, TrainerView


class Figure(NamedTuple):
    """A short sentence with a figure. ``known`` says whether its rules can judge by it."""

    text: str
    known: bool = True


Figures = list[Figure]
"""None where there is nothing to judge."""


class Sources(NamedTuple):
    """What figures are read from besides the host: its readings, and the room of its ranks."""

    readings: HistoryOf
    rooms: Callable[[], list[MemoryRoom]]
    """All of the living ranks, worked out once for a page."""


def sources_of(host: HostView, readings: HistoryOf) -> Sources:
    """Return where the figures of one page come from; nothing is read or worked out twice."""
    once = cache(readings)
    return Sources(once, cache(lambda: rooms(host.devices, living(host), once)))


MOST_JOBS = 2
"""More jobs share their figures: a line for each would hide what comes below."""


class Area(NamedTuple):
    """A part of what is checked.

    ``causes`` are how the causes of its findings begin, ``rules`` what its rules look for.
    ``in_a_hang`` says what its figures are while a job hangs, "" where they mean the same.
    """

    name: str
    causes: tuple[str, ...]
    rules: str
    figures: Callable[[HostView, Sources], Figures]
    in_a_hang: str = ""
    missing: str = "no trainer with a probe"
    """Why there are no figures."""
    of_steps: bool = False
    """Whether its rules judge only a training whose first steps are over."""


def area_of(cause: str) -> str:
    """Return the name of the area of a finding's cause, "" of one that no live rule has."""
    found = [
        (len(start), area.name)
        for area in AREAS
        for start in area.causes
        if cause.startswith(start)
    ]
    return max(found)[1] if found else ""


def living(host: HostView) -> list[TrainerView]:
    """Return the trainers that have not ended."""
    return [t for job in host.jobs for t in job.trainers if t.gone is None]


def _groups(host: HostView) -> list[tuple[str, list[TrainerView]]]:
    """Return the living ranks of each job by its name; many jobs are one group."""
    jobs = [(job.title, [t for t in job.trainers if t.gone is None]) for job in host.jobs]
    jobs = [(title, ranks) for title, ranks in jobs if ranks]
    return jobs if len(jobs) <= MOST_JOBS else [(f"{len(jobs)} jobs", living(host))]


def used_devices(host: HostView) -> list[DeviceView]:
    """Return the devices that a trainer with a probe uses."""
    ids = {a.gpu for t in living(host) for a in t.allocators}
    return [d for d in host.devices if d.id in ids and d.gone is None]


def _missing(entities: Iterable[Entity], column: str) -> str:
    """Return why a reading is missing, "" where nothing says it."""
    for entity in entities:
        reading = entity.reading(column)
        if isinstance(reading, Unknown):
            return reading.text
    return ""


def _between(values: Sequence[float], text: Callable[[float], str]) -> str:
    return interval_text(text(min(values)), text(max(values)), " to ")


def whole_percent(value: float) -> str:
    """Write a reading in percent, which is of 100, without decimals."""
    return percent_text(value / 100, whole=True)


def _hangs(host: HostView, _: Sources) -> Figures:
    out: Figures = []
    for name, ranks in _groups(host):
        stuck = [t for t in ranks if is_stalled(t)]
        begun = [t for t in ranks if t in stuck or t.number("step")]
        if len(begun) < len(ranks):
            verb = "has" if len(ranks) == 1 else "have"
            text = f"{name}: {len(begun)} of {len(ranks)} {verb} stepped"
        else:
            text = f"{name}: {len(ranks) - len(stuck)} of {len(ranks)} stepping"
        text += f", not {names_of(stuck)}" if 0 < len(stuck) < len(ranks) else ""
        ages = [(age, t) for t in ranks if (age := t.number("step_age_seconds")) is not None]
        if ages:
            age, last = max(ages, key=lambda one: one[0])
            who = f" ({name_of(last)})" if len(ranks) > 1 else ""
            usual = last.number("step_seconds")
            text += f"; last step {duration_text(age)} ago{who}"
            text += f", a step takes {duration_text(usual)}" if usual else ""
        out.append(Figure(text, len(begun) == len(ranks)))
    return out


def decides_in(host: HostView) -> str:
    """Return when the rules that judge steps can do so, "" where they can already.

    They leave out the first steps of a training, which take longer than the others.
    """
    ranks = living(host)
    if not ranks or any(map(warmed_up, ranks)):
        return ""
    first = max(ranks, key=lambda t: t.number("step") or 0.0)
    step, seconds = first.number("step"), first.number("step_seconds")
    if not step or not seconds:
        return f"decides after {MIN_STEPS} steps"
    return f"known in {age_text(max(1.0, (MIN_STEPS - step) * seconds))}"


def _steps(host: HostView, _: Sources) -> Figures:
    out: Figures = []
    for name, ranks in _groups(host):
        medians = [s for t in ranks if (s := t.number("step_seconds")) is not None]
        late = [s for t in ranks if (s := t.number("step_seconds_p95")) is not None]
        if medians:
            text = f"{name}: median {_between(medians, duration_text)}"
            text += f", p95 {_between(late, duration_text)}" if late else ""
            out.append(Figure(text))
        else:
            text = f"{name}: no step time: {_missing(ranks, 'step_seconds')}"
            out.append(Figure(text, known=False))
    return out


def _input(host: HostView, _: Sources) -> Figures:
    out: Figures = []
    for name, ranks in _groups(host):
        found = [(share, t) for t in ranks if (share := told_input(t)[0]) is not None]
        if found:
            shares = [share for share, _ in found]
            text = _between(shares, lambda share: percent_text(share, whole=True))
            most = max(found, key=lambda one: one[0])[1]
            who = f", most: {name_of(most)}" if len(found) > 1 and max(shares) > min(shares) else ""
            out.append(Figure(f"{name}: waits {text} of a step{who}"))
        else:
            text = f"{name}: not known: {_missing(ranks, 'loader_wait_seconds')}"
            out.append(Figure(text, known=False))
    return out


def _use(host: HostView, sources: Sources) -> Figures:
    out: Figures = []
    devices = used_devices(host)
    idle = any(tensor_idle(host, d, sources.readings) for d in devices)  # their rows say so at once
    for column, name in (("sm_active_percent", "SMs"), ("tensor_active_percent", "tensor cores")):
        values = [n for d in devices if (n := d.number(column)) is not None]
        if values:
            little = idle and column == "tensor_active_percent"
            text = f"{name}{' idle:' if little else ''} active "
            text += f"{_between(values, whole_percent)} of the time"
            out.append(Figure(text, known=not little))
        elif devices:
            text = f"{name}: not known: {_missing(devices, column)}"
            out.append(Figure(text, known=False))
    return out


def _memory(host: HostView, sources: Sources) -> Figures:
    ranks = living(host)
    known = [room for room in sources.rooms() if room.headroom_bytes is not None]
    out: Figures = []
    if known:
        least = min(known, key=lambda room: room.headroom_bytes or 0.0)
        device = by_id(host.devices, least.allocator.gpu)
        where = subject_of(least.trainer)
        where += f", GPU {device.definition.index}" if device is not None else ""
        total = device.definition.total_bytes if device is not None else None
        of = f" of {bytes_text(total)}" if total else ""
        left = marked(f"{bytes_text(least.headroom_bytes)}{of}", old_seconds(host, least.allocator))
        out.append(Figure(f"least headroom {left} ({where})"))
    allocators = [a for t in ranks for a in t.allocators if a.definition.ordinal >= 0]
    for column, name in (("alloc_retries", "cudaMalloc retries"), ("ooms", "OOMs")):
        values = [n for a in allocators if (n := a.number(column)) is not None]
        each = " on all ranks" if len(values) > 1 and any(values) else ""
        out += [Figure(f"{name}: {sum(values):.0f}{each}")] if values else []
    return out


def _devices(host: HostView, _: Sources) -> Figures:
    devices = list(host.devices)
    if not devices:
        return []
    silent = [d for d in devices if mute(d) is not None]
    well = [d for d in devices if d not in silent]
    text = f"{len(well)} of {len(devices)} answer"
    out = [Figure(text + (f", not GPU {_indices(silent)}" if silent else ""))]
    low = [d for d in well if slowed(d.readings)]
    if any(d.number("clock_event_reasons") is not None for d in well):
        out.append(Figure(f"throttled: GPU {_indices(low)}" if low else "none throttled"))
    warm = [(n, d) for d in well if (n := d.number("temperature_celsius")) is not None]
    if warm:
        degrees, hottest = max(warm, key=lambda one: one[0])
        out.append(Figure(f"hottest {degrees:.0f} °C (GPU {hottest.definition.index})"))
    for column, name in (
        ("ecc_uncorrected_count", "uncorrected ECC errors"),
        ("xid_count", "XIDs"),
    ):
        values = [n for d in well if (n := d.number(column)) is not None]
        out.append(Figure(f"{name}: {sum(values):.0f}" if values else f"{name}: not reported"))
    return out


def _indices(devices: Sequence[DeviceView]) -> str:
    return ranges_text(d.definition.index for d in devices)


def _host(host: HostView, _: Sources) -> Figures:
    d = host.definition
    out: Figures = []
    cpu, free = host.number("cpu_percent"), host.number("memory_available_bytes")
    if cpu is not None:
        cores = f" of {d.cpu_count} cores" if d.cpu_count else ""
        out.append(Figure(f"CPU {whole_percent(cpu)}{cores}"))
    if free is not None and d.memory_total_bytes:
        out.append(Figure(f"memory {bytes_text(free)} of {bytes_text(d.memory_total_bytes)} free"))
    used, room = host.number("shm_used_bytes"), d.shm_total_bytes
    if used is not None and room:
        out.append(Figure(f"/dev/shm {bytes_text(used)} of {bytes_text(room)} used"))
    return out


BEFORE, NO_GPU_USED = "before the hang", "no trainer with a probe on a GPU"
AREAS = (
    Area("hangs", ("stall.",), "a stuck, lost or late rank, and its line of code", _hangs),
    Area(
        "step time",
        ("live.", "ranks."),
        "a slow rank, pauses such as checkpoints, copies, communication, slow kernel launches, "
        "recompiles",
        _steps,
        BEFORE,
        of_steps=True,
    ),
    Area(
        "input",
        ("live.input", "live.reads", "ranks.slow_input"),
        "steps that wait for data",
        _input,
        BEFORE,
        of_steps=True,
    ),
    Area(
        "GPU use",
        ("live.tensor_idle", "live.data_parallel", "live.model_on_cpu", "live.cpu_build"),
        "idle tensor cores, a model on the CPU",
        _use,
        "ranks that wait in a collective count as active",
        NO_GPU_USED,
        of_steps=True,
    ),
    Area(
        "memory",
        (
            "live.memory", "live.fragmentation", "live.full", "live.at_the_edge",
            "live.evaluation", "live.releases", "live.shared_device", "ranks.shared_device",
            "ranks.one_device",
        ),
        "growth, little headroom, fragmentation, other processes or ranks on the GPU",
        _memory,
        missing=NO_GPU_USED,
    ),
    Area(
        "GPUs",
        ("device.",),
        "GPUs that are lost or do not answer, errors, throttling",
        _devices,
        missing="no GPU here",
    ),
    Area("host", ("host.",), "memory, /dev/shm", _host, missing="not read yet"),
)  # fmt: skip
"""In the order in which they are shown; the longest start of a cause decides."""
