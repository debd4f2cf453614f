"""Define the facts that the environment rules judge, and the helpers that these rules share.

The facts are gathered by other modules.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..model import cuda_devices
from ..text.ranges import ranges_text
from ..wire.environment import Build, Device, Facts, Host, Owner, Path, Torch, Xid
from .wordings import Wordings

__all__ = [
    "WORDINGS", "Build", "Device", "Facts", "Host", "Owner", "Path", "Torch", "Xid", "names",
    "read_visible_devices", "version",
]  # fmt: skip

WORDINGS = Wordings("environment")


def version(text: str | None) -> tuple[int, ...]:
    """Returns the leading numbers of a version: (2, 13, 0) for "2.13.0+cu130".

    The result is empty where the text does not begin with a number.
    """
    found = []
    for part in (text or "").split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits or len(digits) > 6:
            break
        found.append(int(digits))
        if digits != part:
            break
    return tuple(found)


def read_visible_devices(facts: Facts, devices: Sequence[Device]) -> cuda_devices.Visible:
    """Returns which devices CUDA_VISIBLE_DEVICES leaves to a program that is started here."""
    return cuda_devices.visible(
        facts.environment.get(cuda_devices.VISIBLE), [device.uuid for device in devices]
    )


def names(devices: list[Device]) -> str:
    """Returns the devices as a text such as "GPU 0", "GPU 0, 2 and 5" or "GPU 0-7"."""
    numbers = ranges_text(device.index for device in devices).split(", ")
    return "GPU " + (
        numbers[0] if len(numbers) == 1 else ", ".join(numbers[:-1]) + " and " + numbers[-1]
    )
