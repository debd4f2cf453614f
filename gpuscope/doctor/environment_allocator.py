"""Judges the allocator's configuration in the environment.

The rules find settings that torch rejects, settings that torch ignores, and variables that this
version of torch does not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..model.allocator_settings import FIRST_COMMON_NAME, NAMES, Broken, Setting, check, parse
from .environment_facts import WORDINGS, Facts, version
from .finding import Evidence, Finding, Severity

__all__ = ["check", "judge", "parse"]

_IGNORED_BY_ASYNC = (
    "max_split_size_mb",
    "roundup_power2_divisions",
    "garbage_collection_threshold",
    "expandable_segments",
    "max_non_split_rounding_mb",
)


# ── rules ─────────────────────────────────────────────────────────────────────────────────────────


def judge(facts: Facts) -> Iterator[Finding]:
    """Yields what is wrong with the configuration, and what of it does nothing."""
    given = {
        name: facts.environment[name]
        for name in NAMES
        if facts.environment.get(name, "").strip(" ,")
    }
    without_cuda = facts.build is not None and facts.build.cuda == "" and facts.build.hip == ""
    read = {name: text for name, text in given.items() if _reads(facts, name)}
    for name, text in given.items():
        if name not in read:
            yield _unread_variable(facts, name, text)
            continue
        for broken in check(text):
            yield _refused_option(name, text, broken, "warning" if without_cuda else "problem")
        yield from _repeated_options(name, text)
        yield from _ignored_options(name, text)
    if len({tuple(sorted(parse(text)[0])) for text in read.values()}) > 1:
        yield _contradicting_variables(read)


def _reads(facts: Facts, name: str) -> bool:
    """Returns whether this torch reads the variable.

    If torch's version is unknown, it is assumed to read the variable.
    """
    own = version(facts.build.version) if facts.build is not None else ()
    if not own or own >= FIRST_COMMON_NAME:
        return True
    hip = facts.build is not None and bool(facts.build.hip)
    return name == "PYTORCH_CUDA_ALLOC_CONF" or (hip and name == "PYTORCH_HIP_ALLOC_CONF")


def _unread_variable(facts: Facts, name: str, text: str) -> Finding:
    own = facts.build.version if facts.build is not None else ""
    reads = f"torch {own} is installed; it reads PYTORCH_CUDA_ALLOC_CONF only"
    return WORDINGS.finding(
        "environment.allocator-config.unread",
        {"version": own, "name": name, "text": text[:300]},
        evidence=(_setting(name, text), Evidence(reads, "torch/version.py")),
        where=name,
    )


def _refused_option(name: str, text: str, broken: Broken, severity: Severity) -> Finding:
    setting = broken.setting[:80]
    others = _joined([one for one in parse(text)[0] if f"{one.key}:{one.value}" != broken.setting])
    correctable = bool(broken.fix) and broken.setting in text
    return WORDINGS.finding(
        "environment.allocator-config.refused"
        if others
        else "environment.allocator-config.refused-alone",
        {
            "setting": setting,
            "name": name,
            "why": broken.why,
            "correct": broken.fix,
            "corrected": text.replace(broken.setting, broken.fix) if correctable else None,
            "others": others,
        },
        severity=severity,
        evidence=(
            _setting(name, text),
            Evidence("torch reads it when CUDA starts, and raises an error there"),
        ),
        where=f"{name} {setting}",
    )


def _repeated_options(name: str, text: str) -> Iterator[Finding]:
    """Yields a finding for each option that is given several different values."""
    settings, _ = parse(text)
    for option, values in _values(settings).items():
        if len(set(values)) > 1:
            yield WORDINGS.finding(
                "environment.allocator-config.repeated",
                {
                    "option": option,
                    "times": len(values),
                    "name": name,
                    "value": values[-1][:40],
                    "last": _joined(settings),
                },
                evidence=(_setting(name, text),),
                where=f"{name} {option}",
            )


def _ignored_options(name: str, text: str) -> Iterator[Finding]:
    """Yields a finding on options that do nothing because of another option."""
    settings, _ = parse(text)
    last = dict(settings)
    backend = last.get("backend", "")
    ignored = [option for option in _IGNORED_BY_ASYNC if last.get(option, "False") != "False"]
    if ignored and backend in ("cudaMallocAsync", "hipMallocAsync"):
        yield WORDINGS.finding(
            "environment.allocator-config.backend",
            {
                "backend": backend,
                "ignored": ", ".join(ignored),
                "name": name,
                "native": _joined([one for one in settings if one.key != "backend"]),
                "kept": _joined([one for one in settings if one.key not in ignored]),
            },
            evidence=(
                _setting(name, text),
                Evidence("they belong to torch's own allocator, which this backend replaces"),
            ),
            where=f"{name} backend",
        )
    elif last.get("expandable_segments") == "True" and "max_split_size_mb" in last:
        yield WORDINGS.finding(
            "environment.allocator-config.split",
            {
                "name": name,
                "others": _joined([one for one in settings if one.key != "max_split_size_mb"]),
            },
            evidence=(
                _setting(name, text),
                Evidence("expandable segments are split wherever a block is larger than asked for"),
            ),
            where=f"{name} max_split_size_mb",
        )


def _contradicting_variables(read: Mapping[str, str]) -> Finding:
    which = "which one torch reads depends on its version; it reads one and does not say which"
    return WORDINGS.finding(
        "environment.allocator-config.names",
        {"names": " and ".join(read), "further": " ".join(list(read)[1:])},
        evidence=(*(_setting(name, text) for name, text in read.items()), Evidence(which)),
        where="PYTORCH_ALLOC_CONF names",
    )


# ── what the rules share ──────────────────────────────────────────────────────────────────────────


def _setting(name: str, text: str) -> Evidence:
    """Returns the variable and its value in the environment, as evidence."""
    return Evidence(f"{name}={text[:300]}", "environment")


def _values(settings: list[Setting]) -> dict[str, list[str]]:
    """Returns every option with all values that it is given, in their order."""
    values: dict[str, list[str]] = {}
    for option, value in settings:
        values.setdefault(option, []).append(value)
    return values


def _joined(settings: list[Setting]) -> str:
    """Returns the settings as torch reads them, each option once with its last value."""
    return ",".join(f"{option}:{value}" for option, value in dict(settings).items())
