"""What the Overview of a wide terminal shows in a line each: steps, power, and the host's load."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...model.device_state import mute
from ...model.ranks import label_among, median, of_one_job
from ...model.step_time import input_columns, input_steps
from ...model.valid_history import while_it_steps
from ...store.view import History
from ...text.units import bytes_text, count_text, duration_text, percent_text, three_digits
from ..charts.chart_series import average, mean_over
from ..charts.line import ALIKE
from ..charts.trends import Trend, moves
from .job_rows import loss_text

if TYPE_CHECKING:
    from ...store.view import DeviceView, HostView, TrainerView
    from ..shell.session import Session

STEPS, WAIT, LOSS, CPU, MEMORY = "other", "series2", "series7", "series5", "series6"
GPU, GPU_MEMORY = "series3", "allocated"
POWER = TEMPERATURE = "driver"
KINDS = (STEPS, WAIT, LOSS, CPU, MEMORY, GPU, GPU_MEMORY, POWER)
"""The colours of the kinds of readings, each of which has one of its own. Several of a kind share
it: each has a line to itself, with its name. Power and temperature are one kind, in grey: each hue
means something else.
"""
ROOMY_TREND_ROWS = 6
"""With so many rows for each reading there is room for those that say less."""
MOST_TRAINERS = 16
"""Of so many trainers the histories are read."""
MOST_ODD, MOST_LINES = 2, 4
"""So many that differ have a line besides that of all others; where more do, the first have one."""
ONE_CORE = 100.0
"""The load of one core in percent, of which a process can have more."""
MOST_GPUS, OTHERS = 4, 5
"""Of more GPUs the one under the cursor and the sum have a line, unless there are lines for all of
them besides so many others.
"""


def watts_text(value: float) -> str:
    """Return a power in whole watts."""
    return f"{value:,.0f} W"


def celsius_text(value: float) -> str:
    """Return a temperature in whole degrees."""
    return f"{value:.0f} °C"


def of_a_core_text(value: float) -> str:
    """Return a load in cores, of which a process can have several."""
    return f"{three_digits(value / 100)} cores"


def top_of_cores(*histories: History) -> float:
    """Return the top of the scale of loads in percent of a core: one core at least.

    A process that does next to nothing has a low line, and not a full one.
    """
    known = [value or 0.0 for one in histories for value in one.values]
    return max([ONE_CORE, *known])


def share_text(value: float) -> str:
    return percent_text(value / 100, whole=True)


def part_text(value: float) -> str:
    """Return a small value in percent."""
    return percent_text(value / 100)


def host_trends(
    session: Session,
    host: HostView,
    device: DeviceView | None,
    trainers: Sequence[TrainerView],
    seconds: float,
    rows: int,
) -> list[Trend]:
    """Return the readings of a host over the last ``seconds``, what says most of it first.

    ``rows`` are the lines that there are for them.
    """
    return [
        *trainer_trends(session, trainers, seconds, based=True),
        *power_trends(
            session, host.devices, device, seconds, max(rows - OTHERS, MOST_GPUS), not trainers
        ),
        *host_readings(session, host, seconds),
    ]


def trainer_trends(
    session: Session, trainers: Sequence[TrainerView], seconds: float, based: bool = False
) -> Iterator[Trend]:
    """Yield the step time, the wait for input and a steady loss of trainers.

    ``based`` says of how many steps a wait is the mean: in tables it is that of minutes.
    """
    shown = trainers[:MOST_TRAINERS]

    def read(trainer: TrainerView, column: str) -> History:
        steps = session.history(trainer.id, "step", seconds)
        return while_it_steps(session.history(trainer.id, column, seconds), steps, trainer)

    steps = [read(trainer, "step_seconds") for trainer in shown]
    yield from named_trends("median step", trainers, steps, duration_text, of_steps=True)
    waits = [
        while_it_steps(_waits(session, one, seconds), session.history(one.id, "step", seconds), one)
        for one in shown
    ]
    bases = {input_steps(one) for one in shown} if based else set()
    what = f"input wait of {bases.pop()} steps" if len(bases) == 1 else "input wait"
    yield from named_trends(what, trainers, waits, share_text, 100.0, WAIT, of_steps=True)
    for trainer in shown:
        loss = read(trainer, "loss")
        if any(value is not None for value in loss.values):
            if not moves(loss):  # one that moves has a chart
                age = trainer.number("step_age_seconds")
                yield Trend("loss", LOSS, loss, loss_text, step_age=age)
            return


def _waits(session: Session, trainer: TrainerView, seconds: float) -> History:
    """Return the share of its steps in which a trainer waits for data, in percent."""
    waits, whole = input_columns(trainer)
    wait = session.history(trainer.id, waits, seconds)
    parts = [session.history(trainer.id, name, seconds).values for name in whole]
    totals = [sum(value or 0.0 for value in known) for known in zip(*parts, strict=True)]
    values = [
        100 * min(one / total, 1.0) if one is not None and total > 0 else None
        for one, total in zip(wait.values, totals, strict=False)
    ]
    return History(wait.seconds[: len(values)], tuple(values))


def named_trends(
    what: str,
    trainers: Sequence[TrainerView],
    pasts: Sequence[History],
    say: Callable[[float], str],
    top: float | None = None,
    token: str = STEPS,
    of_steps: bool = False,
) -> Iterator[Trend]:
    """Yield one line for trainers that are alike, and lines of their own for those that are not.

    ``of_steps`` says that each value is one of a step, of which there are none while it hangs.
    """

    def trend(label: str, trainer: TrainerView, past: History) -> Trend:
        age = trainer.number("step_age_seconds") if of_steps else None
        return Trend(label, token, past, say, top, step_age=age)

    known = [
        (trainer, past, mean)
        for trainer, past in zip(trainers, pasts, strict=False)
        if (mean := average(past)) is not None
    ]
    if not known:
        return
    usual = median(mean for *_, mean in known)
    alike = [one for one in known if abs(one[2] - usual) <= ALIKE * abs(usual)]
    if len(known) < 2 or len(alike) < max(len(known) - MOST_ODD, 2):
        odd, alike = known[:MOST_LINES], []
    else:
        odd = [one for one in known if one not in alike]
    for trainer, past, _ in odd:
        name = f", {label_among(trainer, trainers)}" if len(trainers) > 1 else ""
        yield trend(f"{what}{name}", trainer, past)
    if alike:
        who = "rank" if of_one_job(trainers) else "trainer"
        other = f"other {who}" if odd else who
        most = max(alike, key=lambda one: one[2])
        yield trend(f"{what}, {count_text(len(alike), other)}", most[0], most[1])


def power_trends(
    session: Session,
    devices: Sequence[DeviceView],
    device: DeviceView | None,
    seconds: float,
    most: int = MOST_GPUS,
    apart: bool = False,
) -> Iterator[Trend]:
    """Yield the power of each of at most ``most`` GPUs; ``apart`` also where all are alike.

    Its colours are those of a load, by quarters of the limit. At its limit a GPU does what it is
    for, so that nothing warns there: the state of a GPU says so where it is slowed.
    """
    sound = [one for one in devices if mute(one) is None]
    pasts = [session.history(one.id, "power_watts", seconds) for one in sound]
    limits = [one.number("power_limit_watts") for one in sound]
    means = [usual for past in pasts if (usual := average(past)) is not None]
    alike = len(means) > 1 and max(means) - min(means) <= ALIKE * max(means)
    if alike and not apart:
        name = f"power, {len(means)} GPUs each"
        yield Trend(name, POWER, pasts[0], watts_text, limits[0], by_load=True)
        return
    few = len(sound) <= most
    for one, past, limit in zip(sound, pasts, limits, strict=True):
        if few or one is device:
            label = f"power, GPU {one.definition.index}"
            yield Trend(label, POWER, past, watts_text, limit, by_load=True)
    if not few and len(sound) > 1:
        mean = mean_over(session.history, sound, "power_watts", seconds)
        values = tuple(None if value is None else value * len(sound) for value in mean.values)
        top = sum(limit or 0.0 for limit in limits) if all(limits) else None
        past = History(mean.seconds, values)
        label = f"power, {len(sound)} GPUs"
        yield Trend(label, POWER, past, watts_text, top, by_load=True)


def host_readings(session: Session, host: HostView, seconds: float) -> Iterator[Trend]:
    """Yield the load of the host's cores, and the memory in use."""
    cores = host.definition.cpu_count
    cpu = session.history(host.id, "cpu_percent", seconds)
    yield Trend(f"CPU, {cores or '?'} cores", CPU, cpu, share_text, 100.0)
    total = host.definition.memory_total_bytes
    if total:
        free = session.history(host.id, "memory_available_bytes", seconds)
        used = tuple(None if value is None else total - value for value in free.values)
        past = History(free.seconds, used)
        yield Trend("host memory", MEMORY, past, bytes_text, float(total))


def more_host_readings(session: Session, host: HostView, seconds: float) -> Iterator[Trend]:
    """Yield what else is read of a host, for charts with room: load, shared memory, swap, agent."""
    d = host.definition
    for label, column, say, top, token in (
        ("load average, 1 min", "load_1m", three_digits, None, CPU),
        (
            "cgroup memory",
            "cgroup_memory_used_bytes",
            bytes_text,
            d.cgroup_memory_limit_bytes,
            MEMORY,
        ),
        ("/dev/shm in use", "shm_used_bytes", bytes_text, d.shm_total_bytes, MEMORY),
        ("swap in use", "swap_used_bytes", bytes_text, None, MEMORY),
        ("agent, of one core", "agent_cpu_percent", part_text, None, CPU),
    ):
        past = session.history(host.id, column, seconds)
        if any(past.values):  # what is never used needs no line
            yield Trend(label, token, past, say, float(top) if top else None)
