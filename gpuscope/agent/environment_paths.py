"""Read the paths between GPUs, and the processors near them, for ``gpuscope doctor``.

The facts come from NVML and from the kernel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..process.procfs import read
from ..wire.environment import Path
from ..wire.frames import Reading, Unknown

if TYPE_CHECKING:
    from ..collect.nvml_topology import Pair, Topology

_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_MOST_CPUS = 1 << 16


def paths(topologies: Mapping[int, Topology], devices: int) -> tuple[tuple[Path, ...] | None, str]:
    """Return all pairs that answered; or None and the reason if nothing is known about any."""
    # The devices were asked at the same time, so the first answer may come from any of them.
    pairs = [pair for index in sorted(topologies) for pair in topologies[index].pairs]
    if not pairs:
        silent = (
            "their driver calls did not return in time" if devices > 1 and not topologies else ""
        )
        return None, silent or ("there is only one that answers" if devices > 1 else "")
    unknown = next((pair.peer.text for pair in pairs if isinstance(pair.peer, Unknown)), "")
    return tuple(_path(pair) for pair in pairs), unknown


def _path(pair: Pair) -> Path:
    from ..collect.nvml_topology import ANCESTORS, P2P, SYSTEM

    ancestor, peer, nvlink = whole(pair.ancestor), whole(pair.peer), whole(pair.nvlink)
    return Path(
        first=pair.first,
        second=pair.second,
        crosses=None if ancestor is None else ANCESTORS.get(ancestor),
        sockets=None if ancestor is None else ancestor == SYSTEM,
        no_peer=None if peer is None else P2P.get(peer, ""),
        nvlink=None if nvlink is None else nvlink == 0,
    )


def whole(value: Reading | None) -> int | None:
    return value if isinstance(value, int) else None


def fabric(topology: Topology | None) -> str | None:
    """Say how far a GPU has joined the NVLink fabric.

    "" where there is no fabric, None where the driver does not tell.
    """
    from ..collect.nvml_topology import FABRIC

    state = None if topology is None else whole(topology.fabric)
    return None if state is None else FABRIC.get(state, "")


def cpus_near_device(address: str | None, root: str = "/") -> frozenset[int] | None:
    """Return the processors on the socket of the device at a PCI address, read from sysfs.

    None where the kernel does not tell, as in most virtual machines.
    """
    match = _ADDRESS.fullmatch((address or "").lower())
    if match is None:
        return None
    place = os.path.join(
        root, "sys/bus/pci/devices", f"{match[1][-4:]}:{match[2]}:{match[3]}.{match[4]}"
    )
    try:
        if int(read(os.path.join(place, "numa_node"), 16)) < 0:
            return None
        return numbers(read(os.path.join(place, "local_cpulist"), 4096).decode("ascii")) or None
    except (OSError, ValueError):
        return None


def numbers(text: str) -> frozenset[int]:
    """Parse the kernel's list of processors, such as "0-31,64-95".

    Raises :class:`ValueError` for any other text.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        first, last = int(low), int(high or low)
        if not 0 <= first <= last < _MOST_CPUS:
            raise ValueError(part)
        found.update(range(first, last + 1))
    return frozenset(found)
