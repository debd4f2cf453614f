"""Replay recorded allocator requests under other settings of the allocator.

This is ``gpuscope snapshot FILE --what-if SETTINGS``.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ....errors import UsageError
from ....exit_status import ExitStatus
from ....text.units import MIB, error_text
from ....text.width import wrap
from ....wire.clean import clean
from ....wire.frames import NOT_SUPPORTED, Unknown
from ... import output
from ...args import option, size_of_at_least

if TYPE_CHECKING:
    from ....model.allocator_settings import AllocatorSettings
    from ....predict.replay import Replayed
    from ....snapshot.model import SnapshotDevice
    from ....snapshot.reader import Reading
    from ....text.styled import Line

_EXITS = {"too_close": ExitStatus.WARNINGS, "does_not_fit": ExitStatus.PROBLEMS}


def add_arguments(group: argparse._ArgumentGroup) -> None:
    option(
        group,
        "--what-if SETTINGS",
        "replay the recorded allocations with other allocator settings, such as "
        "expandable_segments:True (as in PYTORCH_ALLOC_CONF; '' for torch's defaults): how much "
        "torch would reserve, and whether it would fit",
        _settings,
    )
    option(
        group,
        "--capacity SIZE",
        "with --what-if: how much torch may reserve, such as 24GiB (default: as much as at "
        "the recorded out-of-memory error)",
        size_of_at_least(MIB),
    )


def _settings(text: str) -> str:
    from ....model.allocator_settings import BadSettings, read

    try:
        read(text)
    except BadSettings as error:
        raise argparse.ArgumentTypeError(clean(error.what, 300)) from None
    return text


Answer = tuple[int, "Replayed | str"]
"""A device, and the result of replaying its trace or the reason why there is none."""


def ask(args: argparse.Namespace, reading: Reading, devices: list[SnapshotDevice]) -> list[Answer]:
    from ....model.allocator_settings import DEFAULT, read
    from ....predict.replay import CannotReplay, replay_device

    def change(own: AllocatorSettings) -> AllocatorSettings:
        return read(args.what_if, own) if args.what_if.strip(" ,") else DEFAULT

    answers: list[Answer] = []
    for device in devices:
        try:
            answers.append((device.device, replay_device(reading, device, change, args.capacity)))
        except CannotReplay as error:
            answers.append((device.device, str(error)))
    return answers


def exit_code(answers: list[Answer]) -> int:
    """Return the exit code of the answers.

    0: it fits, or there is no limit. 1: it is too close to tell. 2: it does not fit. 3: no trace
    could be replayed.
    """
    found = [one for _, one in answers if not isinstance(one, str)]
    if not found:
        return ExitStatus.UNCHECKED
    return max(_EXITS.get(one.verdict or "", ExitStatus.OK) for one in found)


def check_options(args: argparse.Namespace, live: bool) -> None:
    """Raise UsageError where the options do not go together. ``live``: the target is a trainer."""
    if args.what_if is None:
        why = "--capacity goes with --what-if" if args.capacity is not None else ""
    elif live:
        why = (
            "--what-if replays a file: gpuscope snapshot PID -o FILE, then gpuscope snapshot "
            "FILE --what-if SETTINGS"
        )
    else:
        why = "--what-if replays one file, without --at" if args.second or args.at else ""
    if why:
        raise UsageError(why)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────


def lines(answers: list[Answer], width: int) -> list[Line]:
    out: list[Line] = []
    for device, one in answers:
        if isinstance(one, str):
            out += [[(text, "warn")] for text in wrap(f"cuda:{device}: {one}", width)]
            continue
        out += _device_lines(one, len(answers) > 1, width)
    return out


def _device_lines(one: Replayed, several: bool, width: int) -> list[Line]:
    from ....predict.report import TOKENS
    from ....text.units import bytes_text as size

    title = [(f"cuda:{one.device}: ", "muted")] if several else []
    out: list[Line] = []
    for number, text in enumerate(wrap(sentence(one), width - 12 * several)):
        out.append([*(title if not number else []), (text, TOKENS.get(one.verdict or "", "title"))])
    out.append([])
    rows = [
        ("peak reserved", one.recorded_peak_reserved_bytes, one.after.peak_reserved_bytes),
        ("peak allocated", one.before.peak_allocated_bytes, one.after.peak_allocated_bytes),
        ("reserved at the end", one.before.reserved_bytes, one.after.reserved_bytes),
        (
            "fragmented at the end",
            one.before.fragmentation.split_bytes,
            one.after.fragmentation.split_bytes,
        ),
    ]
    out.append([("", ""), (f"{'':27}{'recorded':>12}{'simulated':>12}", "muted")])
    out += [
        [(f"{name:27}{size(was):>12}", ""), (f"{size(now):>12}", "title")]
        for name, was, now in rows
    ]
    if one.after.retries:
        times = "once" if one.after.retries == 1 else f"{one.after.retries:,} times"
        text = f"cached memory was returned {times} to serve a request: the GPU waits meanwhile"
        out += [[(text, "warn")] for text in wrap(text, width)]
    identity = (
        f"error ± {error_text(one.error_percent)}; replayed as recorded, it reserves "
        f"{size(one.before.peak_reserved_bytes)} where {size(one.recorded_peak_reserved_bytes)} "
        "were recorded"
    )
    if one.same_addresses is not None:
        identity += f", {100 * one.same_addresses:.4g} % of the blocks at their recorded addresses"
    out.append([])
    out += [
        [(text, "muted")]
        for sentence in (identity, *(note.text for note in one.notes))
        for text in wrap(sentence, width)
    ]
    return [*out, []]


def sentence(one: Replayed) -> str:
    """The answer in one line."""
    from ....text.units import bytes_text as size

    name = settings_name(one)
    left = one.after.left_bytes
    if one.verdict is None or left is None:
        change = one.after.peak_reserved_bytes - one.recorded_peak_reserved_bytes
        if not change:
            return f"{name} it would have reserved the same: {size(one.after.peak_reserved_bytes)}"
        than = "more" if change > 0 else "less"
        return (
            f"{name} it would have reserved {size(abs(change))} {than}: "
            f"{size(one.after.peak_reserved_bytes)}"
        )
    whole = size(one.capacity_bytes)
    doubt = f" (± {size(one.error_bytes)}: too close to call)" if one.verdict == "too_close" else ""
    if one.after.fits:
        what = "this would have fit" if one.outcomes else "this fits"
        return f"{name} {what} with {size(left)} of {whole} left{doubt}"
    first = one.after.ooms[0]
    again = "still would not have fit" if one.outcomes else "does not fit"
    return (
        f"{name} this {again} into {whole}{doubt}: {size(first.requested_bytes)} requested with "
        f"{size(first.free_bytes)} free, {size(first.cached_bytes)} cached in pieces of "
        f"{size(first.largest_cached_bytes)} at most"
    )


def settings_name(one: Replayed) -> str:
    """``with expandable_segments``, or all that is set."""
    if one.settings == one.recorded_settings:
        return "as recorded"
    text = one.settings.text()
    if not text:
        return "with torch's defaults"
    return "with " + text.replace("expandable_segments:True", "expandable_segments")


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────


def document(answers: list[Answer], unknowns: output.Unknowns) -> list[dict[str, Any]]:
    return [
        _refused(unknowns, f"what_if[{number}]", device, one)
        if isinstance(one, str)
        else _replay_document(unknowns, number, one)
        for number, (device, one) in enumerate(answers)
    ]


def _refused(unknowns: output.Unknowns, path: str, device: int, why: str) -> dict[str, Any]:
    unknowns.add(f"{path}.verdict", Unknown(NOT_SUPPORTED, why))
    return {"device": device, "verdict": None}


def _replay_document(unknowns: output.Unknowns, number: int, one: Replayed) -> dict[str, Any]:
    path = f"what_if[{number}]"
    reason = "no --capacity, and the trace has no out-of-memory error that gives one"
    if one.capacity_bytes is not None:
        reason = "; ".join(
            note.text for note in one.notes if note.code in ("not_reproduced", "no_segments")
        )
    why = Unknown(NOT_SUPPORTED, reason)
    after = one.after
    failure = after.ooms[0] if after.ooms else None
    return {
        "device": one.device,
        "settings": one.settings.text(),
        "recorded_settings": one.recorded_settings.text(),
        "verdict": unknowns.value(f"{path}.verdict", one.verdict, why),
        "capacity_bytes": unknowns.value(f"{path}.capacity_bytes", one.capacity_bytes, why),
        "capacity_source": one.capacity_source or None,
        "left_bytes": unknowns.value(f"{path}.left_bytes", after.left_bytes, why),
        "peak_reserved_bytes": after.peak_reserved_bytes,
        "peak_allocated_bytes": after.peak_allocated_bytes,
        "peak_entry": one.peak_entry if one.peak_entry >= 0 else None,
        "retries": after.retries,
        "recorded_peak_reserved_bytes": one.recorded_peak_reserved_bytes,
        "replayed_peak_reserved_bytes": one.before.peak_reserved_bytes,
        "error_percent": round(one.error_percent, 3),
        "identity_error_percent": round(one.identity_error_percent, 3),
        "exact": one.exact,
        "requests_that_failed": [
            {
                "entry": outcome.entry,
                "requested_bytes": outcome.requested_bytes,
                "served": outcome.served,
            }
            for outcome in one.outcomes
        ],
        "first_failure": None
        if failure is None
        else {
            "requested_bytes": failure.requested_bytes,
            "free_bytes": failure.free_bytes,
            "cached_bytes": failure.cached_bytes,
            "largest_cached_bytes": failure.largest_cached_bytes,
        },
        "notes": [{"code": note.code, "text": note.text} for note in one.notes],
    }
