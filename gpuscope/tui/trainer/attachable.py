"""This module reads an agent's answer about what can be attached to.

It has the processes, the ranks of a job together, and what each would need. It is pure: an
answer and a picture go in, items, rows and lines of pieces come out. The answer comes from
another process, so nothing in it is taken for granted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...cli.commands.attach.ranks import rows_of
from ...text.numbers import whole
from ...text.process_name import short_command
from ...text.ranges import ranges_text
from ...text.styled import Line
from ...wire.clean import clean, limited
from ..shell.keymap import key_of
from ..widgets.table import Column, TableRow

if TYPE_CHECKING:
    from ...store.source import Source
    from ...store.view import HostView, ProcView, TrainerView


COLUMNS = (
    Column("what", "WHAT", 14, flex=2, most=34),
    Column("pid", "PID", 9, align="right"),
    Column("gpu", "GPU", 5, align="right", priority=2),
    Column("user", "USER", 6, flex=1, most=12, priority=3),
    Column("needs", "NEEDS", 24, flex=5),
)
METHODS = ("pep768", "ptrace")
RUNG_NAMES = {
    "probe": "probe",
    "pep768": "PEP 768 attach",
    "ptrace": "ptrace attach",
    "outside": "read-only view",
}
MAX_TEXT = 400
SHOWN_COMMAND = 140


@dataclass(frozen=True, slots=True)
class WayIn:
    """One way in: whether it is open, else why not and what opens it."""

    name: str
    open: bool
    why: str = ""
    next: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """A process that may be attached to.

    ``origin`` is the probe's (run, enable, inject …), "" without a probe; ``consent`` are the
    facts to agree to, None where no method is open.
    """

    source: Source = field(compare=False)
    host: str
    pid: int
    start: int | None
    user: str = ""
    mine: bool = False
    command: str = ""
    rank: int | None = None
    world_size: int | None = None
    job: str = ""
    gpus: tuple[int, ...] = ()
    origin: str = ""
    rungs: tuple[WayIn, ...] = ()
    consent: Mapping[str, str] | None = None
    pod: str = ""

    @property
    def key(self) -> str:
        return f"{self.source.key} {self.pid}"

    @property
    def has_probe(self) -> bool:
        return bool(self.origin)

    @property
    def name(self) -> str:
        """How the process is called, as ``rank 3, pid 48216``."""
        return f"rank {self.rank}, pid {self.pid}" if self.rank is not None else f"pid {self.pid}"

    @property
    def needs(self) -> str:
        """What it would take, in a line."""
        if self.has_probe:
            return f"nothing: it has a probe ({self.origin})"
        if self.consent is not None:
            return f"your consent ({self.consent['method']})"
        return closed(self.rungs).why or "the agent there does not report it"


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Ranks of one job, or one process by itself."""

    key: str
    items: tuple[Item, ...]

    @property
    def is_job(self) -> bool:
        return len(self.items) > 1

    @property
    def open(self) -> tuple[Item, ...]:
        """Those that lack a probe and could be given one."""
        return tuple(item for item in self.items if not item.has_probe and item.consent is not None)


@dataclass(frozen=True, slots=True)
class AttachableProcesses:
    """All processes that can be attached to, and what is known about them.

    ``helpers`` counts processes that serve a trainer, which nobody wants to look into;
    ``meant`` are the pids that somebody came for.
    """

    groups: tuple[ProcessGroup, ...] = ()
    helpers: int = 0
    notes: tuple[str, ...] = ()
    meant: tuple[int, ...] = ()

    @property
    def cursor(self) -> str | None:
        """The key of the line that is meant.

        It is that of one process, or of the job that several are ranks of.
        """
        for group in self.groups:
            keys = [item.key for item in group.items if item.pid in self.meant]
            if keys:
                return f"job {group.key}" if len(keys) > 1 else keys[0]
        return None


def closed(rungs: Sequence[WayIn]) -> WayIn:
    """Return the rung whose reason matters most: of a method that this Python has at all."""
    inner = [rung for rung in rungs if rung.name in METHODS and not rung.open and rung.why]
    able = [rung for rung in inner if rung.code != "unsupported"]
    return next(iter(able or inner[::-1]), WayIn("outside", False))


# ── reading an answer ──


def items_of(
    answer: Mapping[str, Any], host: HostView, source: Source, alone: bool = False
) -> tuple[list[Item], int, list[str]]:
    """Return the processes of one host, how many helpers were left out, and the agent's notes.

    ``alone`` leaves out the trainers that are known and not in the answer.
    """
    trainers = {t.definition.pid: t for t in host.trainers if t.gone is None}
    living = {p.definition.pid: p for p in host.processes if p.gone is None}
    items, helpers, listed = [], 0, set()
    for row in rows_of(answer):
        pid = whole(row.get("pid"))
        if pid is None or pid in listed:
            continue
        listed.add(pid)
        if row.get("role") in ("launcher", "worker") and pid not in trainers:
            helpers += 1
            continue
        items.append(_item(row, pid, host, source, trainers.get(pid), living.get(pid)))
    for pid, trainer in trainers.items():
        if pid not in listed and not alone:
            items.append(_item({}, pid, host, source, trainer, living.get(pid)))
    note = _text(answer.get("note"))
    return items, helpers, [note] if note else []


def _item(
    row: Mapping[str, Any],
    pid: int,
    host: HostView,
    source: Source,
    trainer: TrainerView | None,
    process: ProcView | None,
) -> Item:
    looked = row.get("look")
    look: Mapping[str, Any] = looked if isinstance(looked, Mapping) else {}
    definition, inside = (
        (process.definition if process else None),
        (trainer.definition if trainer else None),
    )
    sibling = whole(row.get("sibling_of"))
    job = (f"children of pid {sibling}" if sibling is not None else "") or _text(row.get("job"))
    rank = inside.rank if inside is not None and inside.rank is not None else whole(row.get("rank"))
    world = (
        inside.world_size
        if inside is not None and inside.world_size
        else whole(row.get("world_size"))
    )
    ids = {use.gpu for use in process.uses if use.gone is None} if process is not None else set()
    return Item(
        source,
        host.name,
        pid,
        whole(row.get("start")) or (definition.start if definition else None),
        _text(row.get("user")) or (definition.user or "" if definition else ""),
        bool(row.get("mine", definition.mine if definition else False)),
        _text(row.get("command")) or (definition.command or "" if definition else ""),
        rank,
        world,
        job or (inside.job or "" if inside is not None else ""),
        tuple(sorted(d.definition.index for d in host.devices if d.id in ids)),
        (inside.origin or "probe") if inside is not None else "",
        rungs_of(look),
        consent_of(look),
        (inside.pod or "" if inside is not None else "") or _text(row.get("pod")),
    )


def rungs_of(look: Mapping[str, Any]) -> tuple[WayIn, ...]:
    """Return the ladder of an answer to ``look``."""
    rungs = look.get("rungs")
    return tuple(
        WayIn(
            _text(one.get("name")),
            one.get("open") is True,
            _text(one.get("why")),
            _text(one.get("next")),
            _text(one.get("code")),
        )
        for one in (rungs[:8] if isinstance(rungs, list) else ())
        if isinstance(one, Mapping)
    )


def consent_of(look: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the facts to agree to; None where the agent names none, or not all."""
    consent = look.get("consent")
    names = ("command", "user", "method", "effect", "price", "undo")
    if not isinstance(consent, Mapping) or consent.get("method") not in METHODS:
        return None
    return {name: _text(consent.get(name)) or "?" for name in names}


def _text(value: object) -> str:
    return clean(value, MAX_TEXT) if isinstance(value, str) else ""


# ── groups and rows ──


def group_items(items: Iterable[Item]) -> tuple[ProcessGroup, ...]:
    """Ranks of a job together, over hosts too; mine first, then what lacks a probe."""
    jobs: dict[str, list[Item]] = {}
    for item in items:
        place = "" if joins_hosts(item.job) else f"{item.source.key} "
        jobs.setdefault(f"{place}{item.job}" if item.job else item.key, []).append(item)
    groups = [
        ProcessGroup(
            key, tuple(sorted(own, key=lambda i: (i.rank is None, i.rank or 0, i.host, i.pid)))
        )
        for key, own in jobs.items()
    ]
    return tuple(sorted(groups, key=lambda g: (not g.items[0].mine, not g.open, g.items[0].pid)))


def joins_hosts(job: str) -> bool:
    """Return whether equal job keys on two hosts mean one job.

    A meeting point on the loopback or a parent's pid says nothing about another host.
    """
    from ...store.jobs import is_local_key

    return bool(job) and not job.startswith("children of ") and not is_local_key(job)


def rows(groups: Sequence[ProcessGroup], several_hosts: bool) -> list[TableRow]:
    """Return a line for each job and below it each rank; a line for each process by itself."""
    out = []
    for group in groups:
        first = group.items[0]
        title = short_command(first.command) if first.command else f"pid {first.pid}"
        if group.is_job:
            out.append(TableRow(f"job {group.key}", _job_cells(group, title)))
        for item in group.items:
            on = f" on {item.host}" if several_hosts else ""
            rank = f"rank {item.rank}" if item.rank is not None else title
            what = f"  {rank}{on}" if group.is_job else f"{title}{on}"
            out.append(
                TableRow(
                    item.key,
                    {
                        "what": [(what, "text" if item.mine else "muted")],
                        "pid": str(item.pid),
                        "gpu": ranges_text(item.gpus) if item.gpus else "–",
                        "user": item.user or "–",
                        "needs": [
                            (
                                item.needs,
                                "ok" if item.has_probe else "accent" if item.consent else "muted",
                            )
                        ],
                    },
                )
            )
    return out


def _job_cells(group: ProcessGroup, title: str) -> dict[str, Any]:
    count, inside = len(group.items), sum(item.has_probe for item in group.items)
    world = max((item.world_size or 0 for item in group.items), default=0)
    of = f" of {world}" if world > count else ""
    gpus = sorted({index for item in group.items for index in item.gpus})
    needs = f"nothing: all {count} have a probe" if inside == count else ""
    if not needs:
        ways = {item.consent["method"] for item in group.open if item.consent is not None}
        needs = f"your consent ({', '.join(sorted(ways))})" if group.open else group.items[-1].needs
        needs += f" for {len(group.open)} of {count}" if 0 < len(group.open) < count else ""
    return {
        "what": [(f"{title} ×{count}", "title")],
        "pid": f"{count}{of}" if of else f"{count} ranks",
        "gpu": ranges_text(gpus) if gpus else "–",
        "user": group.items[0].user or "–",
        "needs": [(needs, "accent" if group.open else "muted")],
    }


# ── lines ──


def about(item: Item) -> Iterable[Line]:
    """Return a process in full: who it is, and each rung with why it is closed."""
    yield [("Process  ", "muted"), (f"{item.name}  ", "title"), (short(item.command), "text")]
    if item.pod:
        yield [("Pod      ", "muted"), (item.pod, "text")]
    if item.has_probe:
        out = f"{key_of('detach', 'AttachScreen')} removes it"
        how = out if item.origin == "inject" else f"loaded by {item.origin}; stays until the end"
        yield [("Inside   ", "muted"), (f"a probe ({item.origin}); ", "ok"), (how, "muted")]
        return
    commands: list[str] = []
    for rung in item.rungs:
        name = RUNG_NAMES.get(rung.name, rung.name)
        if rung.open:
            yield [
                ("Open     ", "ok"),
                (name, "text"),
            ]
        else:
            yield [("Closed   ", "muted"), (f"{name}: {rung.why}", "muted")]
        commands += [rung.next] if rung.next and rung.next not in commands else []
    if item.consent is not None:
        yield [
            ("Now      ", "muted"),
            (key_of("select", "AttachScreen"), "accent"),
            (": shows what would be done and its overhead", "text"),
        ]
    for command in commands[:2]:
        label, _, rest = command.partition(":")
        text = " ".join((rest if label.startswith("Next") and rest else command).split())
        yield [
            ("Next run " if label.startswith("Next run") else "Next     ", "muted"),
            (text, "accent"),
        ]


def short(command: str) -> str:
    """Return as much of a command as helps to know it again."""
    return limited(command, SHOWN_COMMAND)


def question(items: Sequence[Item]) -> Iterable[Line]:
    """Return what would be done to these processes: who, how, effect, price, undo."""
    same = len(items) > 1 and len({item.command for item in items}) == 1
    for number, item in enumerate(items[:8]):
        facts = item.consent or {}
        label = ("Process  " if len(items) == 1 else "Ranks    ") if not number else "         "
        owner = facts.get("user") or item.user
        yield [
            (label, "muted"),
            (f"{item.name}", "title"),
            (
                f" on {item.host}, {owner}" + ("" if same else f":  {short(item.command or '?')}"),
                "text",
            ),
        ]
    if len(items) > 8:
        yield [("         ", "muted"), (f"and {len(items) - 8} more", "muted")]
    if same:
        yield [("Command  ", "muted"), (short(items[0].command or "?"), "text")]
    facts = items[0].consent or {}
    yield [
        ("Method   ", "muted"),
        (facts.get("method", "?"), "title"),
        (f". It {facts.get('effect', '?')}", "text"),
    ]
    price = facts.get("price", "?")
    yield [("Overhead ", "muted"), (price, "text")]
    if len(items) > 1:
        yield [
            ("Order    ", "muted"),
            (
                f"one rank at a time, {len(items)} in all; stops at the first that refuses, is "
                "busy or fails",
                "text",
            ),
        ]
    yield [("Undo     ", "muted"), (facts.get("undo", "?"), "text")]


def farewell(item: Item) -> Iterable[Line]:
    """Return what taking a probe out does."""
    yield [("Process  ", "muted"), (item.name, "title")]
    yield [("         ", "muted"), (f"on {item.host}, {item.user}:  {short(item.command)}", "text")]
    effect = (
        "removes the probe's thread, file descriptors and patches; the training continues. Its "
        "code stays loaded, unused."
    )
    yield [("Effect   ", "muted"), (effect, "text")]
    yield [
        ("Overhead ", "muted"),
        ("none for the training; afterwards only the read-only view remains", "text"),
    ]
    yield [("Undo     ", "muted"), ("a, to attach again", "text")]
