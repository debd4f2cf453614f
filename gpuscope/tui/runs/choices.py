"""These are the Lab's switches as a key walks through them.

The module says which value comes next, which switch does nothing here, and why.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...lab.config import LabConfig
from ...lab.toggles import EVERY_PRESET, FSDP, PRESETS, STEPS, TOGGLES, Toggle, Value

SWITCHES: tuple[Toggle, ...] = (*TOGGLES, STEPS)
"""All that can be set, in the order of the screen."""
LADDERS: dict[str, tuple[Value, ...]] = {
    "seed": (0, 1, 2, 3),
    "batch": (None, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "accumulate": (1, 2, 4, 8, 16),
    "nproc": (None, 1, 2, 4, 8),
    "workers": (None, 0, 1, 2, 4, 8, 16),
    "prefetch": (None, 1, 2, 4, 8),
    "fsdp_ahead": (0, 1, 2, 4),
    "steps": (None, 10, 20, 50, 100, 200, 500, 1000),
}
"""Numbers a key walks through; any other is typed (Enter)."""
NO_LOADER = "no effect: batches are created on the GPU (loader synthetic)"
NO_FSDP = "no effect: it says how FSDP2 shards (parallel fsdp)"


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """Where a run would train, as far as it is known before it starts.

    ``kind`` is cpu, cuda, or "" while it is unknown; ``why`` says how we know.
    """

    kind: str = ""
    why: str = ""


def choices(toggle: Toggle, now: Value) -> tuple[Value, ...]:
    """Return the values a key walks through, ``now`` among them."""
    options: tuple[Value, ...]
    if toggle.name == "model":
        options = (*PRESETS, *EVERY_PRESET)
    elif toggle.choices:
        options = toggle.choices
    elif toggle.yes_no:
        options = (None, True, False) if toggle.unset else (False, True)
    else:
        options = LADDERS[toggle.name]
    if now in options:
        return options
    if isinstance(now, int):  # a number that was typed stands where it belongs
        return tuple(sorted((*options, now), key=lambda v: -1 if v is None else int(v)))
    return (now, *options)


def next_value(toggle: Toggle, now: Value, by: int) -> Value:
    """Return the value ``by`` steps further, from the end to the start again."""
    options = choices(toggle, now)
    at = next(i for i, option in enumerate(options) if option == now and type(option) is type(now))
    return options[(at + by) % len(options)]


def value_text(toggle: Toggle, config: LabConfig, device: DeviceChoice) -> str:
    """Return a value in as few words as say it."""
    value = getattr(config, toggle.name)
    if value is not None:
        return toggle.text(value)
    if toggle.name == "nproc":
        return {"cpu": "2", "cuda": "each GPU"}.get(device.kind, "each GPU")
    return {"steps": "until stopped"}.get(toggle.name, toggle.unset)


def does_nothing(config: LabConfig, device: DeviceChoice) -> dict[str, str]:
    """Return why each toggle changes nothing with these switches, on this device.

    Toggles that do something are left out.
    """
    out: dict[str, str] = {}
    if device.kind == "cpu":
        out.update(
            {
                toggle.name: toggle.on_cpu
                for toggle in TOGGLES
                if toggle.on_cpu.startswith("no effect")
            }
        )
    if config.loader == "synthetic":
        out.update(dict.fromkeys(("workers", "pin_memory", "non_blocking", "prefetch"), NO_LOADER))
    elif config.workers == 0:
        out["prefetch"] = "no effect: no worker prepares batches ahead (workers 0)"
    if config.non_blocking and not config.pin_memory and "non_blocking" not in out:
        out["non_blocking"] = (
            "no effect: only copies from pinned memory are asynchronous (pin memory off)"
        )
    if config.compile == "off":
        out["fullgraph"] = "no effect: the model is not compiled (compile off)"
    if config.parallel != "fsdp":
        out.update(dict.fromkeys(FSDP, NO_FSDP))
    if config.parallel == "none":
        out["nproc"] = "no effect: one process on one GPU (parallel none)"
    return out


def note(toggle: Toggle, config: LabConfig, device: DeviceChoice) -> tuple[str, str]:
    """Return what the switch is, and what it does here.

    The second is "" where it does nothing else here.
    """
    why = does_nothing(config, device).get(toggle.name, "")
    if why:
        return toggle.help, f"here {why}"
    if toggle.on_cpu and device.kind == "cpu":
        return toggle.help, f"on this CPU: {toggle.on_cpu}"
    return toggle.help, ""
