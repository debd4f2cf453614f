"""The allocator's configuration in the environment: what torch refuses of it, and what it ignores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..model.allocator_settings import FIRST_COMMON_NAME, NAMES, Broken, Setting, check, parse
from .environment_facts import Facts, version
from .finding import Evidence, Finding, Fix, Severity

__all__ = ["check", "judge", "parse"]

_IGNORED_BY_ASYNC = (
    "max_split_size_mb", "roundup_power2_divisions", "garbage_collection_threshold", "expandable_segments",
    "max_non_split_rounding_mb",
)  # fmt: skip


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
