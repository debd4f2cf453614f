"""Read the allocator's configuration as torch reads it.

It also says what that means for the simulated allocator.

The grammar and the limits are those of c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig;
the limits of the options that a CPU build knows too were checked against torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..errors import UsageError
from ..text.units import MIB

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
FIRST_COMMON_NAME = (2, 9)
"""torch that reads PYTORCH_ALLOC_CONF; older ones read the CUDA name only."""
_LONGEST = 4096
_TOKEN = re.compile(r"[,:\[\]]|[^,:\[\]]+")


class Setting(NamedTuple):
    """One ``key:value``. ``value`` is its text without blanks."""

    key: str
    value: str


class Broken(NamedTuple):
    """A setting (or the rest of the text) that torch refuses, and why."""

    setting: str
    why: str
    fix: str = ""


def parse(text: str) -> tuple[list[Setting], list[Broken]]:
    """The settings in ``text``, and what is wrong with its form.

    A part that is wrong does not hide the others.
    """
    tokens = _TOKEN.findall(text[:_LONGEST].replace(" ", ""))
    settings: list[Setting] = []
    broken: list[Broken] = []
    at = 0
    while at < len(tokens):
        end = _end(tokens, at)
        part = tokens[at:end]
        at = end + 1
        whole = "".join(part)
        if not part:
            continue
        if len(part) < 3 or part[1] != ":" or part[0] in ",:[]":
            broken.append(Broken(whole, "write options as key:value", _rewritten(whole)))
        else:
            settings.append(Setting(part[0], "".join(part[2:])))
    return settings, broken


def _end(tokens: list[str], at: int) -> int:
    """Return the end of the setting that begins at ``at``: the next comma outside brackets."""
    depth = 0
    for position in range(at, len(tokens)):
        if tokens[position] == "[":
            depth += 1
        elif tokens[position] == "]":
            depth -= 1
        elif tokens[position] == "," and depth <= 0:
            return position
    return len(tokens)


def _rewritten(part: str) -> str:
    key, equals, value = part.partition("=")
    return f"{key}:{value}" if equals and key in _CHECKS and value else ""


# ── values ────────────────────────────────────────────────────────────────────────────────────────


def _number(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 18 else None


def _at_least(least: int, why: str = "") -> Callable[[str], str]:
    def check(value: str) -> str:
        number = _number(value)
        if number is None:
            return "its value is a whole number of MB"
        return "" if number >= least else f"torch's minimum is {least}{why}"

    return check


def _boolean(value: str) -> str:
    return "" if value in ("True", "False") else "its value must be exactly True or False"


def _threshold(value: str) -> str:
    return (
        ""
        if (share := _share(value)) is not None and 0 < share < 1
        else "its value must be between 0 and 1"
    )


def _fraction(value: str) -> str:
    return (
        ""
        if (share := _share(value)) is not None and 0 <= share <= 1
        else "its value must be from 0 to 1"
    )


def _share(value: str) -> float | None:
    return float(value) if re.fullmatch(r"\d{1,9}(\.\d{0,15})?|\.\d{1,15}", value) else None


def _power(value: str) -> bool:
    number = _number(value)
    return number is not None and number > 0 and number & (number - 1) == 0


def _divisions(value: str) -> str:
    if not value.startswith("["):
        return (
            ""
            if _power(value)
            else "its value is a power of 2, or a list such as [256:1,512:2,>:4]"
        )
    if not value.endswith("]"):
        return "its list has no closing bracket"
    for part in value[1:-1].split(","):
        size, colon, divisions = part.partition(":")
        if not colon or not (size == ">" or _power(size)):
            return (
                "each entry of its list is size:divisions, the size in MB and a power of 2, "
                "the last one >"
            )
        if divisions != "0" and not _power(divisions):
            return "the divisions in its list are powers of 2"
    return ""


def _threads(value: str) -> str:
    number = _number(value)
    return (
        ""
        if number is not None and _power(value) and number <= 128
        else "its value is a power of 2, 128 at most"
    )


def _backend(value: str) -> str:
    known = ("native", "cudaMallocAsync", "hipMallocAsync")
    return "" if value in known else "its value is native or cudaMallocAsync"


_LARGE, _LEAST_LARGE = "large_segment_size_mb", 11
_NOT_BELOW_LARGE = ("max_split_size_mb", "max_non_split_rounding_mb")
_CHECKS: Mapping[str, Callable[[str], str]] = {
    "backend": _backend,
    "expandable_segments": _boolean,
    "garbage_collection_threshold": _threshold,
    "graph_capture_record_stream_reuse": _boolean,
    _LARGE: _at_least(_LEAST_LARGE),
    "max_non_split_rounding_mb": _at_least(20),
    "max_split_size_mb": _at_least(20),
    "per_process_memory_fraction": _fraction,
    "pinned_max_cached_size_mb": _at_least(0),
    "pinned_max_round_threshold_mb": _at_least(0),
    "pinned_num_register_threads": _threads,
    "pinned_reserve_segment_size_mb": _at_least(1),
    "pinned_use_background_threads": _boolean,
    "pinned_use_cuda_host_register": _boolean,
    "pinned_use_hip_host_register": _boolean,
    "release_lock_on_cudamalloc": _boolean,
    "release_lock_on_hipmalloc": _boolean,
    "roundup_power2_divisions": _divisions,
    "throw_on_cudamalloc_oom": _boolean,
}


def check(text: str) -> list[Broken]:
    """Everything in ``text`` that torch refuses when CUDA starts."""
    settings, broken = parse(text)
    large = [
        number
        for key, value in settings
        if key == _LARGE and (number := _number(value)) is not None
    ]
    for key, value in settings:
        test = _CHECKS.get(key)
        if key in _NOT_BELOW_LARGE and large and large[-1] >= _LEAST_LARGE:
            test = _at_least(large[-1], f", as much as {_LARGE}")
        if test is None:
            broken.append(
                Broken(
                    f"{key}:{value}",
                    "no known version of torch has this option",
                    _suggestion(key, value),
                )
            )
        elif why := test(value):
            right = _value_text(key, value)
            broken.append(Broken(f"{key}:{value}", why, f"{key}:{right}" if right != value else ""))
    return broken


def _suggestion(key: str, value: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key[:80].lower(), _CHECKS, 1, 0.75)
    return f"{near[0]}:{_value_text(near[0], value)}" if near else ""


def _value_text(key: str, value: str) -> str:
    """True and False as torch wants them; any other value as it is."""
    return (
        value.capitalize()
        if _CHECKS[key] is _boolean and value.lower() in ("true", "false")
        else value
    )


# ── what it means ─────────────────────────────────────────────────────────────────────────────────

INTERVALS = 16
"""Powers of two for which divisions can be set: 1 MiB, 2 MiB … 32 GiB, each up to the next."""
_PARTS = "roundup_power2_divisions."


class BadSettings(UsageError):
    """Settings that torch refuses. The text says of each why."""


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The settings that decide where blocks are placed, in bytes. Others are left out."""

    expandable: bool = False
    max_split_bytes: int | None = None
    """Blocks of at least this size are not split, and serve no smaller request. None: no limit."""
    max_rounding_bytes: int = 20 * MIB
    """A request of at least ``max_split_bytes`` takes a block of less than this more."""
    divisions: tuple[int, ...] = (0,) * INTERVALS
    """Requests are rounded up to 1/n of the way between two powers of 2; from 1 MiB on, 0 and 1: to
    512 bytes only.
    """
    collect_share: float = 0.0
    """Above this share of the allowed memory cached blocks are given back before a new segment is
    asked for.
    """
    large_segment_bytes: int = 20 * MIB
    """Segment for requests above 1 MiB and below 10 MiB; the page of expandable segments for large
    blocks.
    """
    fraction: float | None = None
    """``per_process_memory_fraction``: share of the device that torch allows itself."""
    native: bool = True
    """False: ``backend:cudaMallocAsync``, which is the driver's own pool and is not simulated."""

    def text(self) -> str:
        """Return the text for PYTORCH_ALLOC_CONF; "" for the defaults."""
        parts = []
        if not self.native:
            parts.append("backend:cudaMallocAsync")
        if self.expandable:
            parts.append("expandable_segments:True")
        if self.max_split_bytes is not None:
            parts.append(f"max_split_size_mb:{self.max_split_bytes // MIB}")
        if self.max_rounding_bytes != 20 * MIB:
            parts.append(f"max_non_split_rounding_mb:{self.max_rounding_bytes // MIB}")
        if len(set(self.divisions)) > 1:
            each = ",".join(f"{1 << power}:{number}" for power, number in enumerate(self.divisions))
            parts.append(f"roundup_power2_divisions:[{each}]")
        elif self.divisions[0]:
            parts.append(f"roundup_power2_divisions:{self.divisions[0]}")
        if self.collect_share:
            parts.append(f"garbage_collection_threshold:{self.collect_share:g}")
        if self.large_segment_bytes != 20 * MIB:
            parts.append(f"large_segment_size_mb:{self.large_segment_bytes // MIB}")
        if self.fraction is not None:
            parts.append(f"per_process_memory_fraction:{self.fraction:g}")
        return ",".join(parts)


DEFAULT = AllocatorSettings()


def read(text: str, base: AllocatorSettings = DEFAULT) -> AllocatorSettings:
    """``base`` with what ``text`` sets.

    Raises :class:`BadSettings` where torch would refuse to start.
    """
    broken = check(text)
    if broken:
        raise BadSettings("; ".join(f"{one.setting}: {one.why}" for one in broken))
    return _meaning(dict(parse(text)[0]), base)


def grows_segments(text: str) -> bool:
    """Whether ``text`` turns expandable segments on; of two that say so, the last one counts."""
    return dict(parse(text)[0]).get("expandable_segments") == "True"


def recorded(pairs: Mapping[str, str]) -> AllocatorSettings:
    """Return the settings that a snapshot notes beside its segments, by dotted key.

    What it leaves out is torch's default.
    """
    text = pairs.get("PYTORCH_CUDA_ALLOC_CONF", "")
    given = {
        key: value for key, value in parse(text)[0] if key in _CHECKS and not _CHECKS[key](value)
    }
    base = _meaning(given, DEFAULT)
    known: dict[str, str] = {}
    if pairs.get("expandable_segments") in ("True", "False"):
        known["expandable_segments"] = pairs["expandable_segments"]
    split = pairs.get("max_split_size", "")
    if split.isdigit() and int(split) >= MIB:  # −1: no limit
        known["max_split_size_mb"] = str(int(split) // MIB)
    if not _threshold(share := pairs.get("garbage_collection_threshold", "")):
        known["garbage_collection_threshold"] = share
    found = _meaning(known, base)
    table = [_number(pairs.get(f"{_PARTS}{1 << power}", "")) for power in range(INTERVALS)]
    if None in table:
        return found
    return replace(found, divisions=tuple(number or 0 for number in table))


def _meaning(values: Mapping[str, str], base: AllocatorSettings) -> AllocatorSettings:
    """Return the settings of values that were checked."""
    change: dict[str, object] = {}
    if "expandable_segments" in values:
        change["expandable"] = values["expandable_segments"] == "True"
    for key, name in _SIZES.items():
        if key in values:
            change[name] = int(values[key]) * MIB
    if "garbage_collection_threshold" in values:
        change["collect_share"] = float(values["garbage_collection_threshold"])
    if "per_process_memory_fraction" in values:
        share = float(values["per_process_memory_fraction"])
        change["fraction"] = share if share < 1 else None
    if "roundup_power2_divisions" in values:
        change["divisions"] = _divided(values["roundup_power2_divisions"])
    if "backend" in values:
        change["native"] = values["backend"] == "native"
    return replace(base, **change)  # type: ignore[arg-type]


_SIZES = {
    "max_split_size_mb": "max_split_bytes",
    "max_non_split_rounding_mb": "max_rounding_bytes",
    "large_segment_size_mb": "large_segment_bytes",
}


def _divided(value: str) -> tuple[int, ...]:
    """``8``, or ``[256:1,512:2,>:4]``: sizes in MB.

    The first entry also counts for what is smaller, ``>`` for what is larger than the last one;
    sizes that no entry names are not divided.
    """
    if not value.startswith("["):
        return (int(value),) * INTERVALS
    table = [0] * INTERVALS
    last = -1
    for number, part in enumerate(value[1:-1].split(",")):
        size, _, divisions = part.partition(":")
        if size == ">":
            table[last + 1 :] = [int(divisions)] * (INTERVALS - last - 1)
            continue
        last = min(int(size).bit_length() - 1, INTERVALS - 1)
        if number == 0:
            table[:last] = [int(divisions)] * last
        table[last] = int(divisions)
    return tuple(table)
