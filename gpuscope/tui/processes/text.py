"""This module makes the lines of the screen of one process, of the picture alone.

It knows no widget and asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...model.cuda_devices import VISIBLE, names_by_number, ordinals
from ...model.device_state import IDLE_PERCENT
from ...model.job_ends import how_it_ended
from ...model.lost_loss import told_loss
from ...store.view import HostView, ProcView
from ...text import styled
from ...text.process_name import LAB, short_command, short_script, shown_command
from ...text.styled import Line, Piece
from ...text.units import age_text, ago_text, bytes_text, percent_text
from ...wire.frames import Unknown
from ..cells import fit
from ..shared.fact_lines import fact, why
from ..shared.process_trends import living_uses, trainer_in
from .idle import Idle

UUID_CHARS = 12
"""Of a UUID, enough to tell GPUs apart, also in CUDA_VISIBLE_DEVICES."""


def head(host: HostView, process: ProcView) -> Line:
    """Return the title of the screen, as ``Process 48213  train.py``: what people call it."""
    d, trainer = process.definition, trainer_in(host, process)
    script = trainer.definition.script if trainer is not None else None
    name = short_script(script) if script else short_command(d.command) if d.command else d.name
    return [(f"Process {d.pid}  ", "bold accent"), (name or "?", "title")]


def about_lines(
    host: HostView, process: ProcView, idle: Idle | None, cells: int, whole: bool = False
) -> list[Line]:
    """Return who it is and what it does; without ``idle`` not whether it works.

    ``whole`` gives all switches of a run of the Lab.
    """
    d = process.definition
    start, now = d.start_time, host.wall_seconds
    old = age_text(now - start) if start is not None and now is not None else None
    where = [
        f"Slurm job {d.slurm_job}" if d.slurm_job else "",
        f"pod {d.pod}" if d.pod else "",
        d.container or "",
    ]
    lines: list[Line] = []
    if process.gone is not None:
        end = how_it_ended(process.gone)
        how = ": ".join(part for part in (end.how, end.text) if part)
        lines.append(fact(end.word, [(how or "without an error", "warn")]))
    short = shown_command(d.command) if d.command and not whole else ""
    command = short if short.startswith(LAB) else d.command
    lines.append(
        fact("command", [(command, "text") if command else why(process.readings.get("command"))])
    )
    owner = [
        (d.user, "text" if d.mine else "muted") if d.user else why(process.readings.get("user"))
    ]
    owner.append((", mine" if d.mine else "", "muted"))
    if old is not None:
        owner += [
            (" · started ", "muted"),
            ("<1 s" if old == "now" else old, "text"),
            (" ago", "muted"),
        ]
    owner.append((f" · child of pid {d.ppid}" if d.ppid and d.ppid > 1 else "", "muted"))
    lines.append(fact("user", owner))
    if any(where):
        lines.append(fact("belongs to", [(" · ".join(part for part in where if part), "text")]))
    cpu, rss = process.number("cpu_percent"), process.number("rss_bytes")
    host_words = [
        f"{percent_text(cpu / 100)} of one core" if cpu is not None else "",
        f"RSS {bytes_text(rss)}" if rss else "",
    ]
    about = " · ".join(word for word in host_words if word)
    lines.append(fact("host", [(about, "text") if about else why(process.reading("cpu_percent"))]))
    if idle is not None:
        lines.append(fact("idle", [_working(process, idle)]))
    trainer, step = trainer_in(host, process), process.number("log_step")
    if step is not None and (trainer is None or trainer.number("step") is None):
        total, loss = process.number("log_total"), process.number("log_loss")
        epoch = process.number("log_epoch")
        words = f"epoch {epoch:.0f}, " if epoch is not None else ""
        words += f"step {step:,.0f}" + (f" of {total:,.0f}" if total is not None else "")
        lost = told_loss(host, process)
        words += f", loss {loss:.4g}" if loss is not None else ""
        words += f", loss {lost[1].value}" if lost is not None else ""
        age = process.number("log_age_seconds")
        words += f", {ago_text(age)}" if age is not None else ""
        lines.append(fact("log says", [(words, "text")]))
    return styled.hang_lines(lines, cells)


def _working(process: ProcView, idle: Idle) -> Piece:
    shares = [use.reading("sm_percent") for use in living_uses(process)]
    if idle:
        return (f"{idle.text}: runs no kernels", "idle")
    if any(isinstance(share, (int, float)) and share >= IDLE_PERCENT for share in shares):
        return ("no: runs kernels", "ok")
    cpu = process.number("cpu_percent")
    if cpu is not None and cpu >= IDLE_PERCENT:
        return ("no: computes on the CPU; the driver reports no kernels for it", "text")
    return why(shares[0] if shares else None)


def use_lines(host: HostView, process: ProcView, cells: int) -> list[Line]:
    """Return a line for each device that the process uses.

    It has the bytes, the share, and what the process calls the device where a probe tells.
    """
    devices = {device.id: device for device in host.devices}
    names = cuda_names(host, process)
    lines: list[Line] = []
    for use in living_uses(process):
        device = devices.get(use.gpu)
        if device is None:
            continue
        size, share = use.reading("used_bytes"), use.reading("sm_percent")
        words: Line = [(fit(f"GPU {device.definition.index}", 7), "title")]
        words.append((names.get(use.gpu, ""), "accent"))
        words.append(
            (f" {bytes_text(float(size))}", "text")
            if not isinstance(size, (Unknown, str))
            else why(size)
        )
        if isinstance(share, (Unknown, str)):
            words += [("  share of the SMs: ", "muted"), why(share, bool(host.badge))]
        else:
            words += [("  this process ", "muted"), (percent_text(share / 100), "text")]
            total = device.number("utilization_percent")
            whole = f", whole GPU {percent_text(total / 100)}" if total is not None else ""
            words.append((whole, "muted"))
        lines += styled.hang_lines([words], cells)
    return lines or [[("not on any visible GPU", "muted")]]


def cuda_names(host: HostView, process: ProcView) -> Mapping[int, str]:
    """Return what torch calls each device in this process, such as ``cuda:0``, by its id.

    It is {} where no probe tells.
    """
    trainer = trainer_in(host, process)
    if trainer is None:
        return {}
    return {
        one.gpu: f"cuda:{one.definition.ordinal}"
        for one in trainer.allocators
        if one.gpu is not None and one.definition.ordinal >= 0
    }


def order_lines(host: HostView, process: ProcView, environment: Mapping[str, str]) -> list[Line]:
    """Return which GPU each ``cuda:N`` is: by its probe, else by what it was started with."""
    indices = {device.id: device.definition for device in host.devices}
    names = cuda_names(host, process)
    if names:
        pairs = sorted((name, indices[gpu]) for gpu, name in names.items() if gpu in indices)
        source = "from the probe"
    else:
        found = ordinals(environment, [d.definition for d in host.devices if d.gone is None])
        if isinstance(found, Unknown):
            return [fact("cuda:N", [(found.text, "faint")])]
        if (
            process.definition.container
            and not host.definition.container
            and names_by_number(environment)
        ):
            note = "it runs in a container, which may see fewer GPUs under other numbers"
            return [fact("cuda:N", [(note, "faint")])]
        pairs = [(f"cuda:{one.number}", one.gpu) for one in found]
        source = (
            f"by {VISIBLE}={environment[VISIBLE]}"
            if VISIBLE in environment
            else f"{VISIBLE} is not set"
        )
    lines = [
        fact(name, [(f"GPU {gpu.index}", "text"), (f"  {gpu.uuid[:UUID_CHARS]}", "muted")])
        for name, gpu in pairs
    ]
    if lines:
        return [[(source, "muted")], *lines]
    return [[(f"it sees no GPU ({source})", "warn")]]
