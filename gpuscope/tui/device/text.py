"""This module makes the lines of the Device screen, of the picture alone.

It knows no widget and asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...collect.clock_events import clock_event_words
from ...model.device_state import faults_of, judge, processes_on, slowed, unowned_on
from ...model.xid_errors import last_xid_error
from ...store.view import DeviceView, HostView
from ...text import styled
from ...text.styled import Line, Piece
from ...text.units import bytes_text, percent_text, rate_text
from ...wire.frames import Unknown
from ..cells import fit
from ..shell.keymap import key_of
from ..widgets.bars import meter
from .device_state import in_short, token_of

LABEL = 12
BUSY, WORKING, LESS, LITTLE = 80.0, 50.0, 30.0, 10.0
"""Percent: a GPU that is said to be busy; SMs or a pipe that work; a pipe that works little; one
that hardly does.
"""
DRAM_FULL = 60.0
"""Of the memory's bandwidth: beyond, kernels wait for memory rather than for arithmetic."""
MIG_UNVERIFIED = "MIG was tried with a stand-in of the driver only, not on hardware"


def head(host: HostView, device: DeviceView) -> Line:
    """Return the title of the screen, as ``GPU 0  NVIDIA H200 · Hopper, cc 9.0 · node-17``."""
    d = device.definition
    kind = ", ".join(
        part
        for part in (d.architecture, f"cc {d.compute_capability}" if d.compute_capability else "")
        if part
    )
    facts = [d.name or "", kind, host.name]
    return [
        (f"GPU {d.index}  ", "bold accent"),
        (" · ".join(fact for fact in facts if fact), "title"),
    ]


def fact(label: str, pieces: Sequence[Piece]) -> Line:
    """Return a label and what follows it."""
    return [(fit(label, LABEL), "muted"), *pieces]


def why(reading: object) -> Piece:
    """Return the reason for a reading that is not there."""
    return (f"– {in_short(reading.text)}" if isinstance(reading, Unknown) else "–", "faint")


# ── what it does ──


GAUGES = (
    ("GPU-Util", "utilization_percent", "time with any kernel"),
    ("SM active", "sm_active_percent", "SMs at work"),
    ("occupancy", "sm_occupancy_percent", "warps resident"),
    ("tensor", "tensor_active_percent", "tensor pipe busy"),
    ("DRAM", "dram_active_percent", "memory bandwidth"),
    ("FP32", "fp32_active_percent", "pipe busy"),
    ("FP16", "fp16_active_percent", "pipe busy, not tensor"),
    ("FP64", "fp64_active_percent", "pipe busy"),
    ("integer", "integer_active_percent", "pipe busy"),
)


def load_lines(device: DeviceView, cells: int, rows: int, glyphs: object) -> list[Line]:
    """Return gauges of what works how much, the most telling first, then what that means.

    What a GPU does not tell is one line with its reason.
    """
    out: list[Line] = []
    missing: dict[str, list[str]] = {}
    bar = max(6, min(30, cells - LABEL - 6 - 22))
    for label, column, words in GAUGES:
        value = device.number(column)
        if value is None:
            reading = device.reading(column)
            missing.setdefault(reading.text if isinstance(reading, Unknown) else "", []).append(
                label
            )
            continue
        token = "series1" if column == "utilization_percent" else "series3"
        pieces = [
            *meter(value, bar, token, glyphs, slim=True),  # type: ignore[arg-type]
            (f" {percent_text(value / 100):>6}", "text"),
        ]
        out.append(fact(label, [*pieces, (f" {words}", "faint")]))
    meaning = what_it_means(device)
    lines = styled.hang_lines([fact("meaning", [(meaning, "accent")])], cells) if meaning else []
    kept = out[: max(4, rows - len(lines) - len(missing))]
    for text, labels in missing.items():
        kept += styled.hang_lines(
            [fact("–", [(f"{', '.join(labels)}: {in_short(text)}", "faint")])], cells
        )
    return [*lines, *kept] if rows < 8 else [*kept, *lines]


def what_it_means(device: DeviceView) -> str:
    """Return one sentence about what GPU-Util hides, "" where nothing can be said."""
    load, sm, tensor = (
        device.number(c)
        for c in ("utilization_percent", "sm_active_percent", "tensor_active_percent")
    )
    dram = device.number("dram_active_percent")
    if load is None:
        return ""
    if load < 1:
        return "nothing runs"
    if sm is None:
        return (
            "GPU-Util says only that some kernel runs; how much of the GPU it uses, this GPU "
            "does not tell"
        )
    runs, idle, works = (
        percent_text(load / 100),
        percent_text(1 - load / 100),
        percent_text(sm / 100),
    )
    if load >= BUSY and sm < WORKING:
        return (
            f"a kernel runs {runs} of the time, but on {works} of the SMs: kernels are too "
            "small, or too few"
        )
    if load < BUSY:
        return f"for {idle} of the time nothing runs: it waits for input, the CPU, or other GPUs"
    if tensor is None:
        return f"the SMs work {works} of the time"
    multiplies = percent_text(tensor / 100)
    if dram is not None and dram >= DRAM_FULL and tensor < WORKING:
        reads = percent_text(dram / 100)
        return (
            f"memory bound: DRAM {reads} busy, tensor pipe {multiplies}; fused kernels move "
            "less data"
        )
    if tensor < LITTLE:
        return (
            f"SMs work, the tensor pipe {multiplies}: matrix products in FP32, or hardly any; "
            "see bf16 and TF32"
        )
    if tensor < WORKING:
        return (
            f"busy, yet the tensor pipe does {multiplies} of what it could: the rest is other "
            "work or waiting"
        )
    return f"the tensor pipe is busy {multiplies} of the time: most of the work is matrix products"


def in_few_words(device: DeviceView) -> str:
    """Return the same in at most 15 cells, without numbers.

    The words stay as they are while the numbers move.
    """
    load, sm, tensor = (
        device.number(c)
        for c in ("utilization_percent", "sm_active_percent", "tensor_active_percent")
    )
    dram = device.number("dram_active_percent")
    if load is None or sm is None or load < 1:
        return ""
    if load >= BUSY and sm < WORKING:
        return "few SMs at work"
    if load < BUSY:
        return "idle at times"
    if tensor is None:
        return ""
    if dram is not None and dram >= DRAM_FULL and tensor < WORKING:
        return "memory bound"
    share = (
        "hardly"
        if tensor < LITTLE
        else "little"
        if tensor < LESS
        else "half"
        if tensor < WORKING
        else "mostly"
    )
    return f"{share} tensor"


def traffic_line(device: DeviceView) -> Line:
    """PCIe, with the generation and width of its link, and NVLink, to and from the GPU."""

    def moved(name: str) -> str:
        sent, got = (device.number(f"{name}_{way}_bytes_per_second") for way in ("tx", "rx"))
        return (
            f"out {rate_text(sent)} in {rate_text(got)}"
            if sent is not None and got is not None
            else ""
        )

    d = device.definition
    generation, lanes = device.number("pcie_generation"), device.number("pcie_width")
    link = (
        f"gen {generation:.0f} ×{lanes:.0f}" if generation is not None and lanes is not None else ""
    )
    if link and d.max_pcie_generation:
        link += f" of gen {d.max_pcie_generation} ×{d.max_pcie_width}"
    pcie = ", ".join(part for part in (moved("pcie"), link) if part)
    pieces = [
        f"{label} {text}" for label, text in (("PCIe", pcie), ("NVLink", moved("nvlink"))) if text
    ]
    return fact(
        "traffic",
        [(" · ".join(pieces), "text")]
        if pieces
        else [why(device.reading("pcie_tx_bytes_per_second"))],
    )


def state_lines(host: HostView, device: DeviceView, cells: int) -> list[Line]:
    """State, memory, heat, power, clocks."""
    d, n = device.definition, device.number
    verdict = judge(host, device)
    state: Line = [
        (verdict.word, token_of(verdict)),
        (f"  {in_short(verdict.reason)}" if verdict.reason else "", "text"),
    ]
    used, free, held = n("used_bytes"), n("free_bytes"), n("driver_reserved_bytes")
    memory = [f"{bytes_text(used)} used"] if used is not None else []
    memory += [f"{bytes_text(free)} free"] if free is not None else []
    memory += [f"{bytes_text(held)} driver"] if held is not None else []
    whole = f"of {bytes_text(d.total_bytes)}" if d.total_bytes else ""
    held_now: Line = (
        [(" · ".join([*memory, whole] if whole else memory), "text")]
        if memory
        else [why(device.reading("used_bytes")), (f" · {whole}" if whole else "", "text")]
    )
    heat, margin = n("temperature_celsius"), n("slowdown_margin_celsius")
    if margin is None and heat is not None and d.slowdown_celsius is not None:
        margin = d.slowdown_celsius - heat
    warm = [f"{heat:.0f} °C"] if heat is not None else []
    warm += [f"{margin:.0f} °C to slowdown"] if margin is not None else []
    warm += [f"memory {hot:.0f} °C"] if (hot := n("memory_temperature_celsius")) is not None else []
    warm += [f"fan {percent_text(fan / 100)}"] if (fan := n("fan_percent")) is not None else []
    power, limit, energy = n("power_watts"), n("power_limit_watts"), n("energy_joules")
    watts = (
        [f"{power:.0f} W" + (f" of {limit:.0f}" if limit is not None else "")]
        if power is not None
        else []
    )
    if (
        limit is not None
        and d.default_power_limit_watts is not None
        and limit < d.default_power_limit_watts
    ):
        watts.append(f"capped below its default of {d.default_power_limit_watts:.0f}")
    watts += (
        [f"{energy / 3.6e6:,.1f} kWh since the driver was loaded"] if energy is not None else []
    )
    clocks = []
    for label, column, most in (
        ("SM", "sm_clock_mhz", d.max_sm_clock_mhz),
        ("memory", "memory_clock_mhz", d.max_memory_clock_mhz),
    ):
        if (clock := n(column)) is not None:
            clocks.append(f"{label} {clock:.0f}" + (f"/{most}" if most else "") + " MHz")
    clocks += (
        [f"P{state_number:.0f}"] if (state_number := n("performance_state")) is not None else []
    )
    mask = n("clock_event_reasons")
    reasons = clock_event_words(int(mask), harmless=True) if mask is not None else ()
    held_by: Line = (
        [(" · held by " + ", ".join(reasons), "warn" if slowed(device.readings) else "muted")]
        if reasons
        else []
    )
    lines = [
        fact("state", state),
        fact("memory", held_now),
        fact(
            "heat",
            [(" · ".join(warm), "text")] if warm else [why(device.reading("temperature_celsius"))],
        ),
        fact(
            "power",
            [(" · ".join(watts), "text")] if watts else [why(device.reading("power_watts"))],
        ),
        fact(
            "clocks",
            [
                (" · ".join(clocks), "text") if clocks else why(device.reading("sm_clock_mhz")),
                *held_by,
            ],
        ),
        traffic_line(device),
    ]
    return styled.hang_lines(lines, cells)


# ── what it is ──


def inventory_lines(host: HostView, device: DeviceView, cells: int) -> list[Line]:
    """Static facts, a few to a line; those that could not be read, by reason."""
    d, h = device.definition, host.definition
    yes = {True: "on", False: "off"}

    def mode(now: bool | None, then: bool | None) -> str:
        return yes[bool(now)] + (
            f", {yes[bool(then)]} after the next reset" if then is not None and then != now else ""
        )

    groups: list[tuple[str, list[str]]] = [
        (
            "card",
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
            "bus",
            [
                f"{d.memory_bus_bits} bit memory" if d.memory_bus_bits else "",
                f"PCIe gen {d.max_pcie_generation} ×{d.max_pcie_width}"
                if d.max_pcie_generation
                else "",
            ],
        ),
        (
            "host side",
            [
                f"NUMA node {d.numa_node}" if d.numa_node else "",
                f"cores {d.cpu_affinity}" if d.cpu_affinity else "",
            ],
        ),
    ]
    lines = [
        fact(label, [(" · ".join(part for part in parts if part), "text")])
        for label, parts in groups
        if any(parts)
    ]
    if d.mig_instances:
        lines.append(
            fact("instances", [(d.mig_instances, "text"), (f" · {MIG_UNVERIFIED}", "faint")])
        )
    lines += topology_lines(host, device)
    return styled.hang_lines(lines, cells)


def topology_lines(host: HostView, device: DeviceView) -> list[Line]:
    """NVLinks and the way to each other GPU."""
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
        from .device_state import ranges

        lines.append(
            fact(
                "topology",
                [(" · ".join(f"{way} GPU {ranges(who)}" for way, who in found.items()), "text")],
            )
        )
    return lines


# ── whether it is well ──


def health_lines(device: DeviceView, cells: int) -> list[Line]:
    """What is wrong first; what is well on one line; what the card does not tell on another."""
    n = device.number
    kinds = {fault.word: fault.kind for fault in faults_of(device.readings)}
    bad: list[Line] = []
    well: list[str] = []
    untold: list[str] = []

    def count(column: str, label: str, token: str, text: str) -> None:
        value = n(column)
        if value is None:
            untold.append(label)
        elif value:
            bad.append(fact(label, [(text.format(f"{value:,.0f}"), kinds.get(token, token))]))
        else:
            well.append(label)

    last, times = last_xid_error(device.readings), n("xid_count")
    if not times and last is None:
        (untold if times is None else well).append("XID")
    elif last is not None:
        times = times or 0
        more = f" ({times:.0f} since gpuscope came)" if times > 1 else ""
        token = "warn" if last.kind == "warn" else "text"
        bad.append(
            fact(
                "XID",
                [(last.text + more, token), (f" · {last.advice}" if last.advice else "", "text")],
            )
        )
    else:
        bad.append(
            fact("XID", [(f"{times:.0f} since gpuscope came, of an unknown number", "warn")])
        )
    count(
        "ecc_uncorrected_count",
        "ECC errors",
        "ECC",
        "{} errors that could not be corrected since the driver was loaded",
    )
    count(
        "ecc_uncorrected_lifetime_count",
        "ECC ever",
        "warn",
        "{} errors that could not be corrected in its life",
    )
    count(
        "ecc_corrected_count",
        "corrected",
        "text",
        "{} memory errors since the driver was loaded, all corrected",
    )
    count(
        "remap_failed",
        "failed remap",
        "remap failed",
        "a bad row of memory could not be replaced: have the card looked at",
    )
    count(
        "remap_pending",
        "remap due",
        "remap due",
        "a row of memory is replaced at the next reset of the GPU",
    )
    count(
        "remapped_uncorrectable_count",
        "rows",
        "warn",
        "{} rows of memory replaced after uncorrected errors",
    )
    count(
        "remapped_correctable_count",
        "spare rows",
        "text",
        "{} rows of memory replaced as a precaution",
    )
    count("retired_pages_count", "retired", "warn", "{} pages of memory retired")
    count(
        "retired_pages_pending",
        "retire due",
        "retire due",
        "a page of memory is retired at the next reset of the GPU",
    )
    count(
        "pcie_replay_count",
        "replays",
        "text",
        "{} PCIe packets had to be sent again since the driver was loaded",
    )
    lines = bad
    if well:
        lines.append(fact("none of", [(", ".join(well), "ok")]))
    if untold:
        lines.append(fact("not told", [(", ".join(untold), "faint")]))
    return styled.hang_lines(lines, cells)


# ── who is on it ──


def process_lines(host: HostView, device: DeviceView, rows: int, cells: int) -> list[Line]:
    """Return a line for each process, the largest first; then what no process holds."""
    holders = {u.process: u for u in device.uses if u.gone is None}
    ordinals = {
        a.definition.trainer: a.definition.ordinal
        for t in host.trainers
        for a in t.allocators
        if a.gpu == device.id
    }

    def size(process_id: int) -> float:
        return holders[process_id].number("used_bytes") or 0.0

    found = sorted(processes_on(host, device), key=lambda p: -size(p.id))
    lines: list[Line] = []
    for process in found[: rows - 1] if len(found) > rows else found:
        d = process.definition
        held = holders[process.id].reading("used_bytes")
        text = "?" if isinstance(held, Unknown) else bytes_text(float(held))
        share = holders[process.id].number("sm_percent")
        busy = f"SM {percent_text(share / 100)}" if share is not None else ""
        ordinal = ordinals.get(process.trainer) if process.trainer is not None else None
        cuda = f"cuda:{ordinal} " if ordinal is not None and ordinal >= 0 else ""
        lines.append(
            [
                (f"{d.pid:>8} {fit(d.user or '?', 10)} {fit(text, 9, 'right')}  ", "text"),
                (f"{fit(busy, 7)}  ", "idle" if share is not None and share < 1 else "text"),
                (cuda, "accent"),
                (d.command or d.name or "", "muted"),
            ]
        )
    if len(found) > len(lines):
        lines.append([(f"         and {len(found) - len(lines)} more", "muted")])
    rest = unowned_on(device)
    if rest:
        unseen = [(f"{bytes_text(rest)} held by no process that can be seen here", "warn")]
        lines += styled.hang(
            [(" " * 9, "text")],
            [*unseen, (f" · {key_of('holders', 'DeviceScreen')}: who has it open", "accent")],
            cells,
        )
    return lines or [[("none that the driver names", "muted")]]


def everything(host: HostView, device: DeviceView, cells: int) -> Iterable[Line]:
    """Return all facts, for a terminal that has room for one list only."""
    yield from state_lines(host, device, cells)
    yield from health_lines(device, cells)
    yield from inventory_lines(host, device, cells)
