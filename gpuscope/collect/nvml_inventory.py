"""Read what a GPU is, beyond the facts needed at first: the later fields of GpuDef.

They are read after the first readings and again each minute, because modes and limits can be
changed. This takes some twenty calls of microseconds, and once three calls for the path to each
other GPU.
"""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple, Union

from ..text.ranges import compact_ranges
from ..wire.frames import NOT_SUPPORTED, Reading, Unknown
from . import nvml_topology
from .nvml_calls import DeviceCalls
from .nvml_readings import CLOCK_MEMORY, Spec, plausible, simple, text, way

ARCHITECTURES = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada",
    9: "Hopper",
    10: "Blackwell",
}
"""nvmlDeviceArchitecture_t."""
COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
"""nvmlComputeMode_t."""
PATHS = {0: "INT", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t in the words that nvidia-smi uses."""
_SLOWDOWN, _SHUTDOWN = 1, 0  # nvmlTemperatureThresholds_t
_AFFINITY_WORDS, _NODE_WORDS = 16, 2
"""The sizes of the affinity bit sets: 64 cores or nodes per word, 1024 cores and 128 nodes."""
_NODE_SCOPE = 0  # nvmlAffinityScope_t
MAX_MIG = 8


def _named(column: str, call: str, names: Dict[int, str]) -> Spec:
    def name(value: int) -> Reading:
        unknown = Unknown(NOT_SUPPORTED, f"{call}: the driver answered {value}, which is unknown")
        return names.get(value, unknown)

    return Spec((column,), (way(call, name),))


def _limits(n: Any, h: Any) -> Tuple[Reading, ...]:
    call = "nvmlDeviceGetPowerManagementLimitConstraints"
    return tuple(
        plausible(call, value, 10**8, 1e-3)
        for value in n.nvmlDeviceGetPowerManagementLimitConstraints(h)
    )


def _modes(call: str) -> Tuple[Tuple[str, Any], ...]:
    return ((call, lambda n, h: tuple(bool(value) for value in getattr(n, call)(h))),)


def mig_instances(binding: Any, calls: DeviceCalls, handle: Any) -> Reading:
    """Return the MIG instances of a GPU, "" where MIG is off.

    This has not been tested on hardware. A slot without an instance answers NotFound and is
    skipped.
    """
    mode, most = "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount"
    enabled = calls.attempt(
        mode, lambda: int(binding.nvmlDeviceGetMigMode(handle)[0]), (mode, "instances")
    )
    if isinstance(enabled, Unknown):
        return enabled
    count = (
        calls.attempt(most, lambda: int(binding.nvmlDeviceGetMaxMigDeviceCount(handle)))
        if enabled
        else 0
    )
    if isinstance(count, Unknown):
        return count
    found: List[str] = []
    for slot in range(min(count, MAX_MIG)):
        one = _instance(binding, calls, handle, slot)
        if isinstance(one, Unknown):
            return one
        if one:
            found.append(f"{slot}: {one}")
    return "; ".join(found)


def _instance(binding: Any, calls: DeviceCalls, handle: Any, slot: int) -> Union[str, Unknown]:
    get = "nvmlDeviceGetMigDeviceHandleByIndex"

    def ask() -> Any:
        try:
            return binding.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except Exception as error:
            if getattr(error, "value", None) == _NOT_FOUND:
                return None
            raise

    part = calls.attempt(get, ask, (get, slot))
    if part is None or isinstance(part, Unknown):
        return "" if part is None else part
    words = []
    for call in ("nvmlDeviceGetUUID", "nvmlDeviceGetName"):

        def name(call: str = call) -> str:
            return text(getattr(binding, call)(part))

        word = calls.attempt(call, name, (call, slot))
        if isinstance(word, Unknown):
            return word
        words.append(word)
    return " ".join(words)


_NOT_FOUND = 6


def ranges(words: Sequence[int]) -> str:
    """Return the bits of 64-bit words as a list: ``"0-23,48-71"``."""
    numbers = [
        64 * position + bit
        for position, word in enumerate(words)
        for bit in range(64)
        if word >> bit & 1
    ]
    return compact_ranges(numbers)


def _listed(column: str, call: str, *sizes: int) -> Spec:
    def listed(words: Sequence[int]) -> Reading:
        return ranges(words) or Unknown(NOT_SUPPORTED, f"{call}: the driver reports none")

    return Spec((column,), (way(call, listed, *sizes),))


INVENTORY: Tuple[Spec, ...] = (
    _named("architecture", "nvmlDeviceGetArchitecture", ARCHITECTURES),
    simple("memory_bus_bits", "nvmlDeviceGetMemoryBusWidth", 1 << 20),
    simple("max_memory_clock_mhz", "nvmlDeviceGetMaxClockInfo", 10**5, 0.0, CLOCK_MEMORY),
    Spec(("vbios_version",), (way("nvmlDeviceGetVbiosVersion", text),)),
    simple("minor", "nvmlDeviceGetMinorNumber", 1 << 20),
    Spec(("ecc_enabled", "ecc_pending"), _modes("nvmlDeviceGetEccMode")),
    Spec(("mig_enabled", "mig_pending"), _modes("nvmlDeviceGetMigMode")),
    simple("default_power_limit_watts", "nvmlDeviceGetPowerManagementDefaultLimit", 10**8, 1e-3),
    Spec(
        ("min_power_limit_watts", "max_power_limit_watts"),
        (("nvmlDeviceGetPowerManagementLimitConstraints", _limits),),
    ),
    simple("slowdown_celsius", "nvmlDeviceGetTemperatureThreshold", 250, 0.0, _SLOWDOWN),
    simple("shutdown_celsius", "nvmlDeviceGetTemperatureThreshold", 250, 0.0, _SHUTDOWN),
    Spec(("persistence",), (way("nvmlDeviceGetPersistenceMode", bool),)),
    _named("compute_mode", "nvmlDeviceGetComputeMode", COMPUTE_MODES),
    _listed("numa_node", "nvmlDeviceGetMemoryAffinity", _NODE_WORDS, _NODE_SCOPE),
    _listed("cpu_affinity", "nvmlDeviceGetCpuAffinity", _AFFINITY_WORDS),
)
PATH_FIELDS = ("nvlink_states", "topology", "peer_access", "fabric")
FIELDS = (*(column for spec in INVENTORY for column in spec.columns), "mig_instances", *PATH_FIELDS)
"""The fields of GpuDef that this module reads."""


def paths(
    binding: Any, calls: DeviceCalls, index: int, handle: Any, count: int
) -> Tuple[Dict[str, Reading], Dict[str, Unknown]]:
    """Return the fields :data:`PATH_FIELDS` of a GPU, and why one of its entries is ``?``.

    ``index`` is the GPU's own index among ``count`` devices.
    """
    links = nvml_topology.link_states(binding, calls, handle)
    peers = [peer for peer in range(count) if peer != index]
    found = nvml_topology.read(binding, calls, index, handle, peers, links)
    fields: Dict[str, Reading] = {}
    fields["nvlink_states"] = links if isinstance(links, Unknown) else "".join(map(str, links))
    fields["fabric"] = (
        found.fabric
        if isinstance(found.fabric, Unknown)
        else nvml_topology.FABRIC.get(int(found.fabric), "none")
    )
    near: Union[Dict[str, int], Unknown] = {}
    if not isinstance(links, Unknown) and any(links) and peers:
        near = _remotes(binding, calls, handle, links)
    ways, peer_access, unknown = {index: "X"}, {index: "X"}, {}
    for pair in found.pairs:
        word = _way(binding, calls, pair, near, links)
        ways[pair.second] = "?" if isinstance(word, Unknown) else word
        peer_access[pair.second] = (
            "?" if isinstance(pair.peer, Unknown) else "no" if pair.peer else "yes"
        )
        if isinstance(word, Unknown):
            unknown["topology"] = word
        if isinstance(pair.peer, Unknown):
            unknown["peer_access"] = pair.peer
    if isinstance(near, Unknown):
        unknown["topology"] = near
    fields["topology"] = " ".join(ways[one] for one in sorted(ways))
    fields["peer_access"] = " ".join(peer_access[one] for one in sorted(peer_access))
    return fields, unknown


def _way(
    binding: Any,
    calls: DeviceCalls,
    pair: nvml_topology.Pair,
    near: Union[Dict[str, int], Unknown],
    links: Union[List[int], Unknown],
) -> Union[str, Unknown]:
    """Return how two GPUs are connected: by NVLink, else the path over PCIe.

    NVLink is shown as NV and the number of links, ? where that is unknown.
    """
    if (
        pair.nvlink == 0
        and not isinstance(pair.nvlink, Unknown)
        and not isinstance(links, Unknown)
        and any(links)
    ):
        if isinstance(near, Unknown):
            return "NV?"
        direct = near.get(_bus_id(binding, calls, pair.second), 0)
        return f"NV{direct or sum(links)}"  # through an NVSwitch, each link reaches every GPU
    if isinstance(pair.ancestor, Unknown):
        return pair.ancestor
    return PATHS[int(pair.ancestor)]


def _remotes(
    binding: Any, calls: DeviceCalls, handle: Any, links: Sequence[int]
) -> Union[Dict[str, int], Unknown]:
    """Return how many of the links that are up end at each PCI address."""
    call = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
    found: Dict[str, int] = {}
    for link in [link for link, up in enumerate(links) if up]:

        def ask(link: int = link) -> str:
            return text(binding.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower()

        address = calls.attempt(call, ask, (call, link))
        if isinstance(address, Unknown):
            return address
        found[address] = found.get(address, 0) + 1
    return found


def _bus_id(binding: Any, calls: DeviceCalls, peer: int) -> str:
    get, info = "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetPciInfo_v3"
    handle = calls.attempt(get, lambda: binding.nvmlDeviceGetHandleByIndex(peer), (get, peer))
    if isinstance(handle, Unknown):
        return ""
    found = calls.attempt(
        info, lambda: text(binding.nvmlDeviceGetPciInfo(handle).busId).lower(), (info, peer)
    )
    return "" if isinstance(found, Unknown) else found
