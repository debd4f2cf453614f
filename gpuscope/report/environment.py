"""Make the section of an environment: versions and settings, without names and identities.

It has what ``gpuscope doctor --bundle`` would have of it: no user, host, path, command or UUID.
"""

from __future__ import annotations

from ..doctor.redaction import DocumentRedactor
from ..store.view import HostView
from ..text.units import DASH, bytes_text
from .content import Section, Table

SOURCE = "the recorded definitions, without names, paths and identities"


def section(host: HostView, when: str) -> Section:
    """Return what is known of the environment of the trainings on a host."""
    own = host.definition
    redact = DocumentRedactor().text
    rows: list[tuple[str, str]] = [
        ("kernel", own.kernel or DASH),
        ("container", own.container or ("none seen" if own.kernel else DASH)),
        ("CPU cores", str(own.cpu_count) if own.cpu_count is not None else DASH),
        ("host memory", bytes_text(own.memory_total_bytes)),
        ("memory limit of the cgroup", bytes_text(own.cgroup_memory_limit_bytes)),
        ("/dev/shm", bytes_text(own.shm_total_bytes)),
        ("driver", own.driver_version or DASH),
        ("CUDA of the driver", own.cuda_driver_version or DASH),
    ]
    models: dict[str, int] = {}
    for device in host.devices:
        definition = device.definition
        parts = [definition.name or "unknown model", bytes_text(definition.total_bytes)]
        if definition.compute_capability:
            parts.append(f"compute capability {definition.compute_capability}")
        models[", ".join(parts)] = models.get(", ".join(parts), 0) + 1
    rows += [("GPU", f"{count} × {text}") for text, count in models.items()]
    facts: dict[tuple[str, str], None] = {}
    for trainer in host.trainers:
        found = trainer.definition
        facts["torch", found.torch_version or DASH] = None
        facts["Python of the trainer", found.python_version or DASH] = None
        if found.backend:
            facts["allocator", found.backend] = None
        if found.allocator_settings:
            facts["allocator settings", found.allocator_settings] = None
        if found.world_size is not None:
            facts["ranks of a job", str(found.world_size)] = None
    rows += list(facts)
    shown = [(name, redact(value)) for name, value in rows if value != DASH]
    return Section("Environment", [Table("", ("What", "Value"), shown, source=SOURCE, when=when)])
