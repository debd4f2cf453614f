"""Say what a GPU is, and how it is linked to the others of its host."""

from __future__ import annotations

from ...store.view import DeviceView, HostView
from ...text import styled
from ...text.ranges import ranges_text
from ...text.styled import Line
from ..shared.fact_lines import fact, facts

MIG_UNVERIFIED = "MIG was tested against a simulated driver only, not on hardware"


def inventory_lines(host: HostView, device: DeviceView, cells: int) -> list[Line]:
    """Return the static facts, a few to a line, and why others could not be read."""
    d, h = device.definition, host.definition
    yes = {True: "on", False: "off"}

    def mode(now: bool | None, then: bool | None) -> str:
        return yes[bool(now)] + (
            f", {yes[bool(then)]} after the next reset" if then is not None and then != now else ""
        )

    groups: list[tuple[str, list[str]]] = [
        (
            "UUID, bus",
            [d.uuid, d.pci_bus_id or "", f"/dev/nvidia{d.minor}" if d.minor is not None else ""],
        ),
        (
            "software",
            [
                f"driver {h.driver_version}" if h.driver_version else "",
                f"CUDA {h.cuda_driver_version}" if h.cuda_driver_version else "",
                f"VBIOS {d.vbios_version}" if d.vbios_version else "",
            ],
        ),
        (
            "modes",
            [
                f"ECC {mode(d.ecc_enabled, d.ecc_pending)}" if d.ecc_enabled is not None else "",
                f"MIG {mode(d.mig_enabled, d.mig_pending)}" if d.mig_enabled is not None else "",
                f"persistence {yes[d.persistence]}" if d.persistence is not None else "",
                f"compute {d.compute_mode}" if d.compute_mode else "",
            ],
        ),
        (
            "limits",
            [
                f"{d.min_power_limit_watts:.0f} to {d.max_power_limit_watts:.0f} W"
                if d.min_power_limit_watts is not None and d.max_power_limit_watts is not None
                else "",
                f"default {d.default_power_limit_watts:.0f} W"
                if d.default_power_limit_watts is not None
                else "",
                f"slows at {d.slowdown_celsius} °C" if d.slowdown_celsius is not None else "",
                f"stops at {d.shutdown_celsius} °C" if d.shutdown_celsius is not None else "",
            ],
        ),
        (
            "interfaces",
            [
                f"{d.memory_bus_bits} bit memory" if d.memory_bus_bits else "",
                f"PCIe gen {d.max_pcie_generation} ×{d.max_pcie_width}"
                if d.max_pcie_generation
                else "",
            ],
        ),
        (
            "host CPU",
            [
                f"NUMA node {d.numa_node}" if d.numa_node else "",
                f"cores {d.cpu_affinity}" if d.cpu_affinity else "",
            ],
        ),
    ]
    energy = device.number("energy_joules")
    if energy is not None:
        used = f"{energy / 3.6e6:,.1f}" if energy >= 0.05 * 3.6e6 or not energy else "<0.1"
        groups.append(("energy", [f"{used} kWh since the driver was loaded"]))
    lines = [line for label, parts in groups for line in facts(label, parts, cells)]
    if d.mig_instances:
        lines.append(
            fact("instances", [(d.mig_instances, "text"), (f" · {MIG_UNVERIFIED}", "faint")])
        )
    lines += topology_lines(device)
    return styled.hang_lines(lines, cells)


def topology_lines(device: DeviceView) -> list[Line]:
    """Return the state of the NVLinks and the way to each other GPU."""
    d = device.definition
    lines: list[Line] = []
    if d.nvlink_states:
        up = d.nvlink_states.count("1")
        down = [str(number) for number, state in enumerate(d.nvlink_states) if state == "0"]
        text = f"{up} of {len(d.nvlink_states)} links up" + (
            f", down: {', '.join(down)}" if down else ""
        )
        pieces: Line = [(text, "warn" if down else "text")]
        pieces += (
            [(f" · fabric {d.fabric}", "warn" if d.fabric == "failed" else "text")]
            if d.fabric not in (None, "none")
            else []
        )
        lines.append(fact("NVLink", pieces))
    elif d.nvlink_states == "":
        lines.append(fact("NVLink", [("none", "muted")]))
    ways = (d.topology or "").split()
    if len(ways) > 1:
        peers = (d.peer_access or "").split()
        found: dict[str, list[int]] = {}
        for index, way in enumerate(ways):
            if index != d.index:
                blocked = index < len(peers) and peers[index] == "no"
                found.setdefault(way + (" without peer access" if blocked else ""), []).append(
                    index
                )
        lines.append(
            fact(
                "topology",
                [
                    (
                        " · ".join(f"{way} GPU {ranges_text(who)}" for way, who in found.items()),
                        "text",
                    )
                ],
            )
        )
    return lines
