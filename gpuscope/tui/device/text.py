"""This module formats the lines of the Device screen from the view alone.

It uses no widget and asks no process.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...collect.clock_events import clock_event_words
from ...model.device_state import NEARLY_FULL, faults_of, judge, processes_on, slowed, unowned_on
from ...model.memory_layers import layers
from ...model.xid_errors import last_xid_error
from ...store.view import DeviceView, HistoryOf, HostView, no_history
from ...text import styled
from ...text.process_name import shown_command
from ...text.styled import Line
from ...text.units import bytes_text, percent_text, rate_text
from ...wire.frames import Unknown
from ..cells import fit
from ..shared.device_bar import BAR_LAYERS
from ..shared.device_state_text import glyph_of, in_short, token_of, why_unread
from ..shared.fact_lines import LABEL, fact, why
from ..shell.keymap import key_of
from ..theme import UNICODE, Glyphs
from ..widgets.bars import Part, meter, stacked_bar
from .inventory_text import inventory_lines

ROOMY_CELLS = 72
"""From this width on, a panel shows the memory that the driver holds."""


def head(device: DeviceView) -> Line:
    """Return the title of the screen, as ``GPU 0  NVIDIA H200 · Hopper, compute 9.0``."""
    d = device.definition
    kind = ", ".join(
        part
        for part in (
            d.architecture,
            f"compute {d.compute_capability}" if d.compute_capability else "",
        )
        if part
    )
    facts = [d.name or "", kind]
    return [
        (f"GPU {d.index}  ", "bold accent"),
        (" · ".join(fact for fact in facts if fact), "title"),
    ]


# ── what it does ──


def traffic_lines(device: DeviceView) -> list[Line]:
    """Return PCIe with the generation and width of its link, and NVLink: to and from the GPU."""

    def moved(name: str) -> list[str]:
        sent, got = (device.number(f"{name}_{way}_bytes_per_second") for way in ("tx", "rx"))
        known = sent is not None and got is not None
        return [f"out {rate_text(sent or 0.0)}", f"in {rate_text(got or 0.0)}"] if known else []

    d = device.definition
    generation, lanes = device.number("pcie_generation"), device.number("pcie_width")
    pcie, link = moved("pcie"), ""
    if generation is not None and lanes is not None:
        link = f"gen {generation:.0f} ×{lanes:.0f}"
        if d.max_pcie_generation and (generation, lanes) != (
            d.max_pcie_generation,
            d.max_pcie_width,
        ):
            link += f" of gen {d.max_pcie_generation} ×{d.max_pcie_width}"
    pcie += [link] if link else []
    missing = why(device.reading("pcie_tx_bytes_per_second"))
    lines = [fact("PCIe", [(" · ".join(pcie), "text")] if pcie else [missing])]
    if nvlink := moved("nvlink"):
        lines.append(fact("NVLink", [(" · ".join(nvlink), "text")]))
    return lines


def _layers(host: HostView, device: DeviceView) -> list[Part]:
    split = layers(host, device)
    return [(split[name], name) for name in BAR_LAYERS if name in split]


def state_lines(
    host: HostView,
    device: DeviceView,
    cells: int,
    history: HistoryOf = no_history,
    glyphs: Glyphs = UNICODE,
) -> list[Line]:
    """Return state with its reason, memory, heat, power, clocks and traffic."""
    d, n = device.definition, device.number
    verdict = judge(host, device, history)
    state: Line = [
        (f"{glyph_of(verdict, glyphs)} {verdict.word}", token_of(verdict)),
        (f"  {in_short(verdict.reason)}" if verdict.reason else "", "text"),
    ]
    used, free, held = n("used_bytes"), n("free_bytes"), n("driver_reserved_bytes")
    whole = f" of {bytes_text(d.total_bytes)}" if d.total_bytes else ""
    memory = [f"{bytes_text(used)}{whole}"] if used is not None else []
    memory += [f"{bytes_text(free)} free"] if free is not None else []
    if held is not None and (cells >= ROOMY_CELLS or not memory):
        memory.append(f"{bytes_text(held)} driver")
    track = max(6, min(24, cells - LABEL - len(" · ".join(memory)) - 2))
    held_now: Line = (
        [
            *stacked_bar(
                _layers(host, device),
                d.total_bytes,
                track,
                glyphs,
                slim=True,
                warn_beyond=NEARLY_FULL,
            ),
            (f"  {' · '.join(memory)}", "text"),
        ]
        if memory
        else [why(device.reading("used_bytes")), (f" ·{whole}" if whole else "", "text")]
    )
    heat, margin = n("temperature_celsius"), n("slowdown_margin_celsius")
    if margin is None and heat is not None and d.slowdown_celsius is not None:
        margin = d.slowdown_celsius - heat
    warm = [f"{heat:.0f} °C"] if heat is not None else []
    warm += [f"{margin:.0f} °C to slowdown"] if margin is not None else []
    warm += [f"memory {hot:.0f} °C"] if (hot := n("memory_temperature_celsius")) is not None else []
    warm += [f"fan {percent_text(fan / 100)}"] if (fan := n("fan_percent")) is not None else []
    power, limit = n("power_watts"), n("power_limit_watts")
    watts = (
        [f"{power:.0f} W" + (f" of {limit:.0f} W" if limit is not None else "")]
        if power is not None
        else []
    )
    if (
        limit is not None
        and d.default_power_limit_watts is not None
        and limit < d.default_power_limit_watts
    ):
        watts.append(f"capped below its default of {d.default_power_limit_watts:.0f}")
    drawn: Line = []
    if power is not None and limit:
        drawn = [*meter(100 * power / limit, track, "series3", glyphs, slim=True), ("  ", "text")]
    clocks = []
    for label, column, most in (
        ("SM", "sm_clock_mhz", d.max_sm_clock_mhz),
        ("memory", "memory_clock_mhz", d.max_memory_clock_mhz),
    ):
        if (clock := n(column)) is not None:
            clocks.append(f"{label} {clock:.0f}" + (f"/{most}" if most else ""))
    clocks[-1:] = [f"{clock} MHz" for clock in clocks[-1:]]
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
            "temperature",
            [(" · ".join(warm), "text")] if warm else [why(device.reading("temperature_celsius"))],
        ),
        fact(
            "power",
            [*drawn, (" · ".join(watts), "text")]
            if watts
            else [why(device.reading("power_watts"))],
        ),
        fact(
            "clocks",
            [
                (" · ".join(clocks), "text") if clocks else why(device.reading("sm_clock_mhz")),
                *held_by,
            ],
        ),
        *traffic_lines(device),
    ]
    return styled.hang_lines(_told_once(lines, verdict.reason), cells)


def _told_once(lines: list[Line], reason: str) -> list[Line]:
    """Return the lines without what the state says of all readings, the first line excepted."""
    told, out = f"– {why_unread(reason)}", lines[:1]
    for label, *pieces in lines[1:]:
        if reason and pieces[0][0] == told:
            rest = "".join(text for text, _ in pieces[1:]).removeprefix(" · ")
            out += [[label, ("– ", "faint"), (rest, "text")]] if rest else []
        else:
            out.append([label, *pieces])
    return out


# ── whether it is well ──


def health_lines(device: DeviceView, cells: int) -> list[Line]:
    """Return the lines on health: faults first, then one line of what is well, one of unknowns."""
    n = device.number
    kinds = {fault.word: fault.kind for fault in faults_of(device.readings)}
    bad: list[Line] = []
    well: list[str] = []
    untold: list[str] = []
    counted: set[str] = set()

    def count(column: str, label: str, group: str, token: str, text: str) -> None:
        value = n(column)
        if value is None:
            untold.append(group)
        elif value:
            told = text.format(f"{value:,.0f}").replace("(s)", "" if value == 1 else "s")
            bad.append(fact(label, [(told, kinds.get(token, token))]))
            counted.add(group)
        else:
            well.append(group)

    last, times = last_xid_error(device.readings), n("xid_count")
    if not times and last is None:
        (untold if times is None else well).append("XID")
    elif last is not None:
        times = times or 0
        more = f" ({times:.0f} since gpuscope started)" if times > 1 else ""
        token = "warn" if last.kind == "warn" else "text"
        bad.append(
            fact(
                "XID",
                [(last.text + more, token), (f" · {last.advice}" if last.advice else "", "text")],
            )
        )
    else:
        bad.append(fact("XID", [(f"{times:.0f} since gpuscope started, numbers unknown", "warn")]))
    count(
        "ecc_uncorrected_count",
        "ECC errors",
        "ECC",
        "ECC",
        "{} uncorrected memory error(s) since the driver was loaded",
    )
    count(
        "ecc_uncorrected_lifetime_count",
        "ECC in all",
        "ECC",
        "warn",
        "{} uncorrected memory error(s) in its lifetime",
    )
    count(
        "ecc_corrected_count",
        "corrected",
        "ECC",
        "text",
        "{} corrected memory error(s) since the driver was loaded",
    )
    count(
        "remap_failed",
        "failed remap",
        "remapped rows",
        "remap failed",
        "a bad memory row could not be remapped: have the GPU checked",
    )
    count(
        "remap_pending",
        "remap due",
        "remapped rows",
        "remap due",
        "a memory row is remapped at the next reset of the GPU",
    )
    count(
        "remapped_uncorrectable_count",
        "rows",
        "remapped rows",
        "warn",
        "{} memory row(s) remapped after uncorrected errors",
    )
    count(
        "remapped_correctable_count",
        "spare rows",
        "remapped rows",
        "text",
        "{} memory row(s) remapped as a precaution",
    )
    count("retired_pages_count", "retired", "retired pages", "warn", "{} memory page(s) retired")
    count(
        "retired_pages_pending",
        "retire due",
        "retired pages",
        "retire due",
        "a memory page is retired at the next reset of the GPU",
    )
    count(
        "pcie_replay_count",
        "replays",
        "PCIe replays",
        "text",
        "{} PCIe packet(s) resent since the driver was loaded",
    )
    lines = bad
    if well:
        groups = [group for group in dict.fromkeys(well) if group not in counted]
        lines += [[(f"{', '.join(groups)}: 0", "ok")]] if groups else []
    if untold:
        hidden = [group for group in dict.fromkeys(untold) if group not in {*well, *counted}]
        lines += [fact("unreported:", [(", ".join(hidden), "faint")])] if hidden else []
    return styled.hang_lines(lines, cells)


# ── who is on it ──


def process_lines(host: HostView, device: DeviceView, rows: int, cells: int) -> list[Line]:
    """Return a line for each process, the largest first; then what no process holds.

    With ``rows`` to spare, headings stand above.
    """
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
    named = [n for p in found if p.trainer is not None and (n := ordinals.get(p.trainer, -1)) >= 0]
    inside = 8 if named else 0
    known = any(holders[p.id].number("sm_percent") is not None for p in found)
    sm = 13 if known and rows <= 4 else 9 if known else 0
    headings: list[Line] = []
    users = min(max([len(p.definition.user or "") for p in found] + [len("USER")]), 10)
    if found and rows > 4:
        torch = "TORCH" if named else ""
        share_of = "UTIL 5s" if known else ""
        text = (
            f"{'PID':>8} {'USER':<{users}} {'MEMORY':>9}  {share_of:<{sm}}{torch:<{inside}}COMMAND"
        )
        headings, rows = [[(text, "muted")]], rows - 1
    for process in found[: rows - 1] if len(found) > rows else found:
        d = process.definition
        held = holders[process.id].reading("used_bytes")
        text = "?" if isinstance(held, Unknown) else bytes_text(float(held))
        share = holders[process.id].number("sm_percent")
        busy = percent_text(share / 100) if share is not None else ""
        if not headings and busy:
            busy = f"UTIL 5s {busy}"
        ordinal = ordinals.get(process.trainer) if process.trainer is not None else None
        cuda = f"cuda:{ordinal}" if ordinal is not None and ordinal >= 0 else ""
        lines.append(
            [
                (f"{d.pid:>8} {fit(d.user or '?', users)} {fit(text, 9, 'right')}  ", "text"),
                (fit(busy, sm), "idle" if share is not None and share < 1 else "text"),
                (fit(cuda, inside), "accent"),
                (shown_command(d.command) if d.command else d.name or "", "muted"),
            ]
        )
    if len(found) > len(lines):
        lines.append([(f"         and {len(found) - len(lines)} more", "muted")])
    rest = unowned_on(device)
    if rest:
        unowned = [(f"{bytes_text(rest)} held by no visible process", "warn")]
        lines += styled.hang(
            [(" " * 9, "text")],
            [*unowned, (f" · {key_of('holders', 'DeviceScreen')}: who has it open", "accent")],
            cells,
        )
    return headings + lines or [[("none reported by the driver", "muted")]]


def everything(host: HostView, device: DeviceView, cells: int) -> Iterable[Line]:
    """Return all facts, for a terminal that has room for one list only."""
    yield from state_lines(host, device, cells)
    yield from health_lines(device, cells)
    yield from inventory_lines(host, device, cells)
