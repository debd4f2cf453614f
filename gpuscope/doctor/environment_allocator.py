"""The allocator's configuration: read as torch reads it, so that what torch refuses or ignores is known beforehand.

The grammar and the limits are those of c10/core/AllocatorConfig and c10/cuda/CUDAAllocatorConfig; the limits of the
options that a CPU build knows too were checked against torch 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from .environment_facts import Facts, version
from .finding import Evidence, Finding, Fix, Severity

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
    """What torch refuses: the setting (or the rest of the text), and why."""

    setting: str
    why: str
    fix: str = ""


def parse(text: str) -> tuple[list[Setting], list[Broken]]:
    """The settings in ``text``, and what is wrong with its form. A part that is wrong does not hide the others."""
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
            broken.append(Broken(whole, "an option is written key:value", _rewritten(whole)))
        else:
            settings.append(Setting(part[0], "".join(part[2:])))
    return settings, broken


def _end(tokens: list[str], at: int) -> int:
    """Where the setting that begins at ``at`` ends: at the next comma outside brackets."""
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


# ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _number(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 18 else None


def _at_least(least: int) -> Callable[[str], str]:
    def check(value: str) -> str:
        number = _number(value)
        if number is None:
            return "its value is a whole number of MB"
        return "" if number >= least else f"the least that torch takes is {least}"

    return check


def _boolean(value: str) -> str:
    return "" if value in ("True", "False") else "its value is True or False, written like that"


def _threshold(value: str) -> str:
    return "" if (share := _share(value)) is not None and 0 < share < 1 else "its value is a share between 0 and 1"


def _fraction(value: str) -> str:
    return "" if (share := _share(value)) is not None and 0 <= share <= 1 else "its value is a share from 0 to 1"


def _share(value: str) -> float | None:
    return float(value) if re.fullmatch(r"\d{1,9}(\.\d{0,15})?|\.\d{1,15}", value) else None


def _power(value: str) -> bool:
    number = _number(value)
    return number is not None and number > 0 and number & (number - 1) == 0


def _divisions(value: str) -> str:
    if not value.startswith("["):
        return "" if _power(value) else "its value is a power of 2, or a list such as [256:1,512:2,>:4]"
    if not value.endswith("]"):
        return "its list has no closing bracket"
    for part in value[1:-1].split(","):
        size, colon, divisions = part.partition(":")
        if not colon or not (size == ">" or _power(size)):
            return "each entry of its list is size:divisions, the size in MB and a power of 2, the last one >"
        if divisions != "0" and not _power(divisions):
            return "the divisions in its list are powers of 2"
    return ""


def _threads(value: str) -> str:
    number = _number(value)
    return "" if number is not None and _power(value) and number <= 128 else "its value is a power of 2, 128 at most"


def _backend(value: str) -> str:
    known = ("native", "cudaMallocAsync", "hipMallocAsync")
    return "" if value in known else "its value is native or cudaMallocAsync"


_CHECKS: Mapping[str, Callable[[str], str]] = {
    "backend": _backend,
    "expandable_segments": _boolean,
    "garbage_collection_threshold": _threshold,
    "graph_capture_record_stream_reuse": _boolean,
    "large_segment_size_mb": _at_least(11),
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
_IGNORED_BY_ASYNC = (
    "max_split_size_mb", "roundup_power2_divisions", "garbage_collection_threshold", "expandable_segments",
    "max_non_split_rounding_mb",
)  # fmt: skip


def check(text: str) -> list[Broken]:
    """Everything in ``text`` that torch refuses when CUDA starts."""
    settings, broken = parse(text)
    for key, value in settings:
        test = _CHECKS.get(key)
        if test is None:
            broken.append(
                Broken(f"{key}:{value}", "no version of torch known here has this option", _meant(key, value))
            )
        elif why := test(value):
            right = _written(key, value)
            broken.append(Broken(f"{key}:{value}", why, f"{key}:{right}" if right != value else ""))
    return broken


def _meant(key: str, value: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key[:80].lower(), _CHECKS, 1, 0.75)
    return f"{near[0]}:{_written(near[0], value)}" if near else ""


def _written(key: str, value: str) -> str:
    """True and False as torch wants them; any other value as it is."""
    return value.capitalize() if _CHECKS[key] is _boolean and value.lower() in ("true", "false") else value


# ── rules ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(facts: Facts) -> Iterator[Finding]:
    """What is wrong with the configuration in the environment, and what of it does nothing."""
    given = {name: facts.environment[name] for name in NAMES if facts.environment.get(name, "").strip(" ,")}
    without_cuda = facts.build is not None and facts.build.cuda == "" and facts.build.hip == ""
    read = {name: text for name, text in given.items() if _reads(facts, name)}
    for name, text in given.items():
        if name not in read:
            yield _unread(facts, name, text)
            continue
        for broken in check(text):
            yield _refused(name, text, broken, "warning" if without_cuda else "problem")
        yield from _ignored(name, text)
    if len({tuple(sorted(parse(text)[0])) for text in read.values()}) > 1:
        yield _several(read)


def _reads(facts: Facts, name: str) -> bool:
    """Whether this torch reads the variable; where the version is unknown it does."""
    own = version(facts.build.version) if facts.build is not None else ()
    if not own or own >= FIRST_COMMON_NAME:
        return True
    hip = facts.build is not None and bool(facts.build.hip)
    return name == "PYTORCH_CUDA_ALLOC_CONF" or (hip and name == "PYTORCH_HIP_ALLOC_CONF")


def _unread(facts: Facts, name: str, text: str) -> Finding:
    own = facts.build.version if facts.build is not None else ""
    return Finding(
        pitfall="allocator-config",
        cause="environment.allocator-config",
        title=f"torch {own} does not read {name}: nothing that it says is in force",
        severity="warning",
        confidence="definite",
        evidence=(
            Evidence(text=f"{name}={text[:300]}", source="environment"),
            Evidence(
                text=f"torch {own} is installed; it reads PYTORCH_CUDA_ALLOC_CONF only", source="torch/version.py"
            ),
        ),
        fixes=(Fix(title="Use the name that this torch reads", environment=f"PYTORCH_CUDA_ALLOC_CONF={text[:300]}"),),
        where=name,
    )


def _refused(name: str, text: str, broken: Broken, severity: Severity) -> Finding:
    fixed = text.replace(broken.setting, broken.fix) if broken.fix and broken.setting in text else ""
    others = _once([one for one in parse(text)[0] if f"{one.key}:{one.value}" != broken.setting])
    fixes = [Fix(title=f"Write {broken.fix}", environment=f"{name}={fixed}")] if fixed else []
    leave = "Leave it out"
    fixes.append(
        Fix(title=leave, environment=f"{name}={others}") if others else Fix(title=leave, command=f"unset {name}")
    )
    return Finding(
        pitfall="allocator-config",
        cause="environment.allocator-config",
        title=f"torch refuses {broken.setting[:80]} in {name}: {broken.why}",
        severity=severity,
        confidence="definite",
        evidence=(
            Evidence(text=f"{name}={text[:300]}", source="environment"),
            Evidence(text="torch reads it when CUDA starts, and raises an error there"),
        ),
        fixes=tuple(fixes),
        verify="gpuscope doctor",
        where=f"{name} {broken.setting[:80]}",
    )


def _ignored(name: str, text: str) -> Iterator[Finding]:
    settings, _ = parse(text)
    values: dict[str, list[str]] = {}
    for key, value in settings:
        values.setdefault(key, []).append(value)
    shown = Evidence(text=f"{name}={text[:300]}", source="environment")
    for key, given in values.items():
        if len(set(given)) > 1:
            yield Finding(
                pitfall="allocator-config", cause="environment.allocator-config",
                title=f"{key} is set {len(given)} times in {name}: the last one counts, {given[-1][:40]}",
                severity="warning", confidence="definite", evidence=(shown,),
                fixes=(Fix(title=f"Keep one {key}", environment=f"{name}={_once(settings)}"),), where=f"{name} {key}",
            )  # fmt: skip
    ignored = [key for key in _IGNORED_BY_ASYNC if key in values and values[key][-1] != "False"]
    if ignored and values.get("backend", [""])[-1] in ("cudaMallocAsync", "hipMallocAsync"):
        kept = _once([one for one in settings if one.key not in ignored])
        yield Finding(
            pitfall="allocator-config", cause="environment.allocator-config",
            title=f"backend:{values['backend'][-1]} ignores {', '.join(ignored)}",
            severity="warning", confidence="definite",
            evidence=(shown, Evidence(text="they belong to torch's own allocator, which this backend replaces")),
            fixes=(
                Fix(title="Keep the options and torch's allocator", environment=f"{name}={_native(settings)}"),
                Fix(title="Keep the backend", environment=f"{name}={kept}"),
            ),
            where=f"{name} backend",
        )  # fmt: skip
    elif values.get("expandable_segments", [""])[-1] == "True" and "max_split_size_mb" in values:
        yield Finding(
            pitfall="allocator-config", cause="environment.allocator-config",
            title="max_split_size_mb does nothing beside expandable_segments:True",
            severity="info", confidence="likely",
            evidence=(shown, Evidence(text="expandable segments are split wherever a block is larger than asked for")),
            fixes=(
                Fix(
                    title="Leave it out",
                    environment=f"{name}={_once([one for one in settings if one.key != 'max_split_size_mb'])}",
                ),
            ),
            where=f"{name} max_split_size_mb",
        )  # fmt: skip


def _native(settings: list[Setting]) -> str:
    return _once([one for one in settings if one.key != "backend"])


def _once(settings: list[Setting]) -> str:
    return ",".join(f"{key}:{value}" for key, value in dict(settings).items())


def _several(read: Mapping[str, str]) -> Finding:
    return Finding(
        pitfall="allocator-config",
        cause="environment.allocator-config",
        title=f"{' and '.join(read)} say different things, and only one of them counts",
        severity="warning",
        confidence="definite",
        evidence=(
            *(Evidence(text=f"{name}={text[:300]}", source="environment") for name, text in read.items()),
            Evidence(text="which one torch reads depends on its version; it reads one and does not say which"),
        ),
        fixes=(Fix(title="Keep one", command=f"unset {' '.join(list(read)[1:])}"),),
        where="PYTORCH_ALLOC_CONF names",
    )
