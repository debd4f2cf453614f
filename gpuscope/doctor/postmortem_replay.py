"""Find out by a replay whether other allocator settings would have served the failed request.

This needs a recorded history that ends at the error. A replay is more reliable than sums of bytes:
an allocator with enough free bytes may have them in the wrong places, and one that looks full may
only be fragmented.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..text.units import bytes_text, error_text
from .finding import Effect, Evidence, Finding, Fix
from .postmortem_oom import WORDINGS

if TYPE_CHECKING:
    from ..predict.replay import Replayed
    from ..snapshot.model import SnapshotDevice
    from ..snapshot.reader import Reading
    from .postmortem_oom import OomFacts

MOST_ENTRIES = 400_000
"""Replaying this many entries takes about 1.5 s. The flight recorder keeps 100,000."""
SETTINGS = ("expandable_segments:True", "max_split_size_mb:128", "roundup_power2_divisions:8")
"""The settings to try, in this order, until one serves the request."""
SECONDS = 10.0
_PITFALL = "expandable-segments"


def with_replay(
    reading: Reading, device: SnapshotDevice, facts: OomFacts, findings: Sequence[Finding]
) -> list[Finding]:
    """Returns the findings with what other settings would have brought.

    The result is added to the finding that advises expandable segments. If there is none and the
    settings would have served the request, a new finding says so, and the others come after it.
    """
    found = _replay(reading, device, facts)
    if found is None:
        return list(findings)
    advised = [one for one in findings if one.pitfall == _PITFALL]
    if not advised:
        if found.verdict != "fits":
            return list(findings)
        return [_new_finding(found, facts), *(_as_second(one, found, facts) for one in findings)]
    return [_with_effect(one, found) if one.pitfall == _PITFALL else one for one in findings]


def _replay(reading: Reading, device: SnapshotDevice, facts: OomFacts) -> Replayed | None:
    if (
        device.trace is None
        or device.trace.entries > MOST_ENTRIES
        or "expandable_segments:True" in facts.settings
    ):
        return None
    from ..model.allocator_settings import read
    from ..predict.replay import CannotReplay, replay_device
    from ..snapshot.reader import SnapshotError

    failed = None
    if facts.requested is not None and facts.free is not None:
        failed = (int(facts.requested), int(facts.free))
    first = None
    for text in SETTINGS:
        try:
            found = replay_device(
                reading, device, partial(read, text), failed=failed, seconds=SECONDS
            )
        except (CannotReplay, SnapshotError):
            return first
        if not found.reproduced or found.verdict is None:
            return None  # it failed for another reason than the size of this pool
        if found.verdict == "fits":
            return found
        first = first or found
    return first


def _effect(found: Replayed) -> Effect:
    left = found.after.left_bytes or 0
    percent = f"± {error_text(found.error_percent)}"
    source = (
        f"predicted ({percent}) by replaying {found.entries:,} recorded entries with "
        f"{found.settings.text()}"
    )
    if found.verdict == "does_not_fit":
        short = found.after.ooms[0]
        text = (
            f"{source}: it still does not fit, {bytes_text(short.requested_bytes)} requested with "
            f"{bytes_text(short.free_bytes)} free "
            f"and {bytes_text(short.cached_bytes)} cached"
        )
        return Effect(text=text, bound="about", freed_bytes=0)
    if found.verdict == "too_close":
        return Effect(
            text=f"{source}: too close to call, {bytes_text(left)} to spare", bound="about"
        )
    freed = max(0, found.needed_bytes - found.after.peak_reserved_bytes)
    text = (
        f"{source}: it would fit with {bytes_text(left)} to spare and reserve {bytes_text(freed)} "
        "less than was needed"
    )
    return Effect(text=text, bound="about", freed_bytes=freed)


def _with_effect(one: Finding, found: Replayed) -> Finding:
    more = replace(one, effect=_effect(found))
    return more if found.settings.expandable else replace(more, fixes=_fixes(found))


def _fixes(found: Replayed) -> tuple[Fix, ...]:
    name = "expandable-segments" if found.settings.expandable else "settings-that-fit"
    return tuple(WORDINGS.fixes([name], {"settings": found.settings.text()}))


def _as_second(one: Finding, found: Replayed, facts: OomFacts) -> Finding:
    """Return what else the error was found to be, as what to do if the settings are not enough."""
    if one.severity != "problem":
        return one
    text = f"first try {found.settings.text()}, with which the same requests fit; use "
    text += "this if that is not enough"
    first = Evidence(text, facts.source)
    return replace(one, severity="info", evidence=(first, *one.evidence))


def _new_finding(found: Replayed, facts: OomFacts) -> Finding:
    cached = max(0, found.before.reserved_bytes - found.before.allocated_bytes)
    wanted = bytes_text(found.outcomes[-1].requested_bytes)
    text = (
        f"{bytes_text(cached)} were cached when {wanted} did not fit; with these settings the "
        "same requests fit"
    )
    more = Evidence(text, facts.source)
    return WORDINGS.finding(
        "oom.fragmentation.replayed",
        {"settings": found.settings.text()},
        _fixes(found),
        evidence=(more,),
        where=facts.where,
        rank=1.9,
        effect=_effect(found),
    )
