"""Find how the GPUs of a host are connected, through NVML.

They may be connected by PCIe, peer access, NVLink and the NVLink fabric. The doctor asks once,
never in a loop: for n GPUs these are 3·n·(n−1)/2 calls about pairs and up to ``MAX_LINKS`` + 2
about each GPU. The numbers are those of nvml.h; pynvml's constants are not used, because one of
them is a tuple by mistake (``NVML_P2P_CAPS_INDEX_READ``).
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

from ..wire.frames import DRIVER_ERROR, Reading, Unknown
from .nvml_calls import DeviceCalls
from .nvml_errors import NOT_SUPPORTED_RETURN, NvmlCallRefused, from_return

MAX_LINKS = 18
"""The most NVLinks of a GPU (Hopper, Blackwell); older GPUs have 4, 6 or 12."""
ANCESTORS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "one host bridge",
    40: "one socket",
    50: "the link between sockets",
}
"""nvmlGpuTopologyLevel_t: what the path between two GPUs crosses."""
SYSTEM = 50
P2P = {
    1: "the chipset does not support it",
    2: "these GPUs do not support it",
    3: "their place on the PCIe bus does not allow it",
    4: "it is switched off in the driver's settings",
    5: "the driver does not support it here",
    6: "the driver gives no reason",
}
"""Why two GPUs cannot read each other's memory: nvmlGpuP2PStatus_t without 0, which means OK."""
FABRIC = {1: "not started", 2: "in progress", 3: "completed", 4: "failed"}
"""The state of joining the NVLink fabric, which Fabric Manager controls.

These are nvmlGpuFabricState_t without 0 (not supported); 4 is gpuscope's own value for a GPU that
joined with an error.
"""
_COMPLETED, _FAILED = 3, 4
_INVALID_ARGUMENT = 2
_P2P_READ, _P2P_NVLINK = 0, 2
_FABRIC_V2 = 0x02000024
"""sizeof(nvmlGpuFabricInfo_v2_t) | 2 << 24."""


class Pair(NamedTuple):
    """How two GPUs, given by index, are connected.

    ``ancestor`` is a key of :data:`ANCESTORS`. ``peer`` and ``nvlink`` are 0 where this kind of
    access works, else a key of :data:`P2P`.
    """

    first: int
    second: int
    ancestor: Reading
    peer: Reading
    nvlink: Reading


class Topology(NamedTuple):
    """The links of one GPU.

    ``links`` is 0 without NVLink. ``fabric`` is a key of :data:`FABRIC`, 0 without a fabric.
    """

    links: Reading
    links_active: Reading
    fabric: Reading
    pairs: Tuple[Pair, ...]


class _FabricV1(ctypes.Structure):
    _fields_ = [
        ("cluster", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
    ]


class _FabricV2(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_uint8 * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint32),
        ("state", ctypes.c_uint8),
        ("health", ctypes.c_uint32),
    ]


def read(
    binding: Any,
    calls: DeviceCalls,
    index: int,
    handle: Any,
    peers: Sequence[int],
    links: Union[List[int], Unknown, None] = None,
) -> Topology:
    """Return the topology of the GPU ``handle`` with ``index``, and its paths to ``peers``.

    ``links`` is the result of :func:`link_states`, if it was read before. It never raises for a
    driver's error.
    """
    if links is None:
        links = link_states(binding, calls, handle)
    count: Reading = links if isinstance(links, Unknown) else len(links)
    active: Reading = links if isinstance(links, Unknown) else sum(links)
    pairs = tuple(_pair(binding, calls, index, handle, peer) for peer in peers)
    return Topology(count, active, _fabric(binding, calls, handle), pairs)


def unreachable(why: Unknown, index: int, peers: Sequence[int]) -> Topology:
    """Return the topology of a GPU that cannot be asked at all."""
    return Topology(why, why, why, tuple(Pair(index, peer, why, why, why) for peer in peers))


def link_states(binding: Any, calls: DeviceCalls, handle: Any) -> Union[List[int], Unknown]:
    """Return 1 for each link that is up and 0 for one that is down; [] without NVLink."""
    call = "nvmlDeviceGetNvLinkState"
    none = (from_return(call, NOT_SUPPORTED_RETURN), from_return(call, _INVALID_ARGUMENT))
    found: List[int] = []
    for link in range(MAX_LINKS):

        def ask(link: int = link) -> int:
            return int(binding.nvmlDeviceGetNvLinkState(handle, link))

        state = calls.attempt(call, ask, (call, link))
        if not isinstance(state, Unknown):
            found.append(1 if state else 0)
        elif state in none:
            break  # there are no more links after this number
        else:
            return state
    return found


def _pair(binding: Any, calls: DeviceCalls, index: int, handle: Any, peer: int) -> Pair:
    get = "nvmlDeviceGetHandleByIndex_v2"
    other = calls.attempt(get, lambda: binding.nvmlDeviceGetHandleByIndex(peer), (get, peer))
    if isinstance(other, Unknown):
        return Pair(index, peer, other, other, other)
    path, peers = "nvmlDeviceGetTopologyCommonAncestor", "nvmlDeviceGetP2PStatus"
    ancestor = calls.attempt(
        path,
        lambda: _among(path, binding.nvmlDeviceGetTopologyCommonAncestor(handle, other), ANCESTORS),
        (path, peer),
    )

    def ask(way: int) -> Reading:
        return calls.attempt(
            peers,
            lambda: _among(peers, binding.nvmlDeviceGetP2PStatus(handle, other, way), P2P, 0),
            (peers, peer, way),
        )

    return Pair(index, peer, ancestor, ask(_P2P_READ), ask(_P2P_NVLINK))


def _among(call: str, value: int, known: Dict[int, str], *more: int) -> Reading:
    return (
        value
        if value in known or value in more
        else Unknown(DRIVER_ERROR, f"{call}: the driver answered {value}")
    )


def _fabric(binding: Any, calls: DeviceCalls, handle: Any) -> Reading:
    """Return the state of the fabric by the newer call, else by the older one.

    pynvml's structs are not used, because they differ between its versions.
    """
    return calls.first(
        (
            (
                "nvmlDeviceGetGpuFabricInfoV",
                lambda: _fabric_by(binding, "nvmlDeviceGetGpuFabricInfoV", handle, True),
            ),
            (
                "nvmlDeviceGetGpuFabricInfo",
                lambda: _fabric_by(binding, "nvmlDeviceGetGpuFabricInfo", handle, False),
            ),
        )
    )


def _fabric_by(binding: Any, call: str, handle: Any, versioned: bool) -> Reading:
    info: Any = _FabricV2(version=_FABRIC_V2) if versioned else _FabricV1()
    refused: Optional[int] = binding.function(call)(handle, ctypes.byref(info))
    if refused:
        raise NvmlCallRefused(refused)
    if info.state == _COMPLETED and info.status:
        return _FAILED
    return _among(call, info.state, FABRIC, 0)
