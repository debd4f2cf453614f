"""Take names of hosts, users, scripts and paths out of the content of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from ..doctor.redaction import DocumentRedactor
from ..store.view import HostView

Content = TypeVar("Content")
OURS = frozenset(("token", "tone", "severity", "confidence", "pitfall", "source", "kind"))
"""Fields that hold our own words."""


def names_of(host: HostView) -> Iterable[tuple[str, str]]:
    """Yield what the definitions of a host name, each with its kind."""
    yield "host", host.name
    for process in host.processes:
        own = process.definition
        yield from (
            ("user", own.user or ""), ("command", own.command or ""), ("program", own.name or ""),
            ("container", own.container or ""), ("pod", own.pod or ""),
        )  # fmt: skip
    for trainer in host.trainers:
        script = trainer.definition.script or ""
        yield from (("script", script), ("script", script.rsplit("/", 1)[-1]))
        yield from (("job", trainer.definition.job or ""), ("pod", trainer.definition.pod or ""))
    for job in host.jobs:
        yield "script", job.title


def redacted(content: Content, redactor: DocumentRedactor) -> Content:
    """Return a chapter, or a part of one, with its texts redacted."""
    found: Any = content
    if isinstance(found, str):
        found = redactor.text(found)
    elif is_dataclass(found) and not isinstance(found, type):
        changed = {
            one.name: redacted(getattr(found, one.name), redactor)
            for one in fields(found)
            if one.init and one.name not in OURS
        }
        found = replace(found, **changed)
    elif isinstance(found, Mapping):
        found = {key: redacted(value, redactor) for key, value in found.items()}
    elif isinstance(found, (list, tuple)):
        found = type(found)(redacted(one, redactor) for one in found)
    result: Content = found
    return result
