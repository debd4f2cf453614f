"""This module says what there is to know and to do when there is little to show.

No driver, no trainer, a container: each gets the facts and the commands that help.
"""

from __future__ import annotations

from ...model.device_state import broken, is_idle, owners, unowned_on
from ...store.view import DeviceView, HistoryOf, HostView
from ...text import styled
from ...text.ranges import ranges_text
from ...text.styled import Line
from ...text.units import bytes_text, percent_text
from ...wire.frames import NOT_ANSWERED
from ..background.view_state import ViewState
from ..shared.device_state_text import free_devices, idle_since
from ..shared.host_text import why_unknown
from ..widgets.pane import WAITING

HEAD = "No NVIDIA driver here: "
BRIEF_HEAD = "No GPU here: "
RECENT_SECONDS = 3.0
WRAPPED_CELLS = 90
"""From so many cells on the reason for no GPU may take a second line."""
AT_ONCE = 16
"""More devices than this do not fit on a usual terminal."""

COMMANDS = (
    ("gpuscope lab", "the demo trainer, here on the CPU"),
    ("gpuscope run train.py", "your own trainer, with a probe"),
    ("gpuscope replay FILE", "a recording; see demos/recordings/"),
)


def facts(host: HostView, load: bool = True) -> str:
    """The host in a line, with its ``load`` or without; what is unknown is left out."""
    d = host.definition
    parts = []
    if not load:
        parts += [f"{d.cpu_count} cores"] if d.cpu_count else []
        parts += [f"{bytes_text(d.memory_total_bytes)} memory"] if d.memory_total_bytes else []
        parts += [f"Linux {d.kernel}"] if d.kernel else []
        return " · ".join(parts + ([f"container {d.container}"] if d.container else []))
    if d.cpu_count:
        busy = host.number("cpu_percent")
        parts.append(
            f"{d.cpu_count} cores"
            + (f", {percent_text(busy / 100)} busy" if busy is not None else "")
        )
    if d.memory_total_bytes:
        free = host.number("memory_available_bytes")
        parts.append(
            (f"{bytes_text(free)} of " if free is not None else "")
            + f"{bytes_text(d.memory_total_bytes)} memory"
            + " available" * (free is not None)
        )
    if d.cgroup_memory_limit_bytes:
        used = host.number("cgroup_memory_used_bytes")
        parts.append(
            (f"{bytes_text(used)} of " if used is not None else "")
            + f"{bytes_text(d.cgroup_memory_limit_bytes)} of the cgroup"
        )
    if d.shm_total_bytes:
        parts.append(f"/dev/shm {bytes_text(d.shm_total_bytes)}")
    if d.kernel:
        parts.append(f"Linux {d.kernel}")
    return " · ".join(parts)


def no_devices(
    host: HostView | None, width: int = 76, commands: bool = True, load: bool = True
) -> list[Line]:
    """Return what stands in the place of device rows, in lines of at most ``width`` cells.

    There are no ``commands`` where another panel has them, and no ``load`` of the host where
    another panel has that. Beside a training that runs there is one line for the reason and one for
    the host: the room is for the training.
    """
    if host is None or host.sampled_seconds is None:
        return [[("waiting for the first reading", "muted")]]
    if host.nvml is None or host.nvml.text == NOT_ANSWERED:  # a driver may be there all the same
        nothing = why_unknown(host, "No reading of the GPUs yet.")
        return [[(nothing, "muted")], [(facts(host), "muted")]]
    reason = host.nvml.text
    if reason.casefold().startswith(HEAD.casefold()):  # the agent says it in the same words
        reason = reason[len(HEAD) :]
    if any(trainer.gone is None for trainer in host.trainers):
        why = f"no NVIDIA driver, {reason}" if reason != host.nvml.text else reason
        about = [[(BRIEF_HEAD, "text"), (why, "muted")], [(facts(host, load), "muted")]]
        known = [line for line in about if line[0][0]]
        if width < WRAPPED_CELLS:
            return [styled.cut(line, width) for line in known]
        return [part for line in known for part in styled.wrap(line, width)]
    lines: list[Line] = [
        *styled.wrap([(HEAD, "text"), (reason, "warn")], width),
        *styled.wrap([(facts(host, load), "muted")], width),
    ]
    if host.link.state == "replay" or not commands:
        return lines
    names = max(len(command) for command, _ in COMMANDS)
    return [
        *lines,
        *([(f"{command:{names}}  ", "accent"), (text, "muted")] for command, text in COMMANDS),
    ]


def about_room(host: HostView, history: HistoryOf, brief: bool = False) -> list[Line]:
    """Return the lines below the jobs, which say what is free and who holds the rest.

    They also say since when the rest is idle, and why its owners may be hidden. They are ``brief``
    where other panels say who is idle, and what can be done here.
    """
    lines: list[Line] = []
    if not host.devices:
        return lines
    free = free_devices(host)
    if free:
        lines.append([("free   ", "ok"), (free, "text")])
    lines += _hidden(host, history)
    if not brief and not any(t.gone is None for t in host.trainers):
        lines += _holders(host, history)
        if host.link.state != "replay":
            lines.append(
                [
                    ("probe  ", "muted"),
                    ("in no training yet:  ", "muted"),
                    ("gpuscope run train.py", "accent"),
                ]
            )
    return lines


def problems(host: HostView, filtered: bool = False) -> list[Line]:
    """Return the lines above the jobs, which name the devices and trainers that are in trouble.

    Devices that are lost, hung or broken for one reason share a line. Where the table of devices
    shows all of them at once, and is not ``filtered``, it says so itself.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for device in host.devices if filtered or len(host.devices) > AT_ONCE else ():
        verdict = broken(device)
        if verdict is not None:
            found.setdefault((verdict.word, verdict.reason), []).append(device.definition.index)
    lines: list[Line] = [
        [(f"GPU {ranges_text(indices)} {word}: ", "bad"), (reason, "text")]
        for (word, reason), indices in found.items()
    ]
    if host.unread is not None:
        lines.append([("Not all trainers are shown: ", "warn"), (host.unread.text, "text")])
    return lines


def _hidden(host: HostView, history: HistoryOf) -> list[Line]:
    """Return how much memory has no named holder here, and why a container hides the names."""
    if not host.definition.container:
        return []
    hidden = {d.definition.index: rest for d in host.devices if (rest := _hidden_bytes(d, history))}
    if not hidden:
        return []
    size = bytes_text(sum(hidden.values()))
    why = f"whose is unknown: a container ({host.definition.container}) sees no processes outside"
    return [
        [
            ("hidden ", "warn"),
            (f"{size} on GPU {ranges_text(list(hidden))}", "text"),
            (f" · {why}", "muted"),
        ]
    ]


def _hidden_bytes(device: DeviceView, history: HistoryOf) -> float:
    """Return the memory that has had no owner for longer than one reading of the processes.

    Processes are read once a second, so what has just grown has no owner for a moment.
    """
    if not unowned_on(device):
        return 0.0
    recent = [
        value
        for value in history(device.id, "used_bytes", RECENT_SECONDS).values
        if value is not None
    ]
    return unowned_on(device, min(recent, default=None)) or 0.0


def _holders(host: HostView, history: HistoryOf) -> list[Line]:
    held: dict[str, list[int]] = {}
    idle: dict[str, str] = {}
    for device in host.devices:
        names = owners(host, device)
        if names:
            who = " and ".join(names.values())
            held.setdefault(who, []).append(device.definition.index)
            since = ""
            if is_idle(device.readings):  # else all that was ever seen would be read for nothing
                past = history(device.id, "utilization_percent", None)
                since = idle_since(past, device.number("idle_since_seconds"))
            idle[who] = since if since and idle.get(who, since) else ""
    return [
        [
            ("used   ", "accent"),
            (f"GPU {ranges_text(indices)}: memory held by {who}", "text"),
            (f", {idle[who]}" if idle[who] else "", "muted"),
        ]
        for who, indices in held.items()
    ]


def why_empty(host: HostView, state: ViewState) -> list[Line]:
    waiting = host.link.text if host.link.failed else WAITING
    text = waiting if host.sampled_seconds is None else "no training runs here"
    return [[("no job matches" if state.filter or state.mine else text, "muted")]]
