"""This module collects what the palette offers: keys, actions, things, commands, pitfalls, words.

An entry says what it is and what choosing it does. Nothing here draws.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ...text.units import bytes_text
from ..shell.actions import ACTIONS, BY_NAME
from ..shell.keymap import in_order, key_text, keys_of, shown_whole
from ..theme import THEME_NAMES
from ..widgets.program import program
from ..widgets.status import short_model

if TYPE_CHECKING:
    from textual.app import App
    from textual.screen import Screen

    from ...text.glossary import Term
    from ..shell.session import Session
    from ..widgets.program import Program

MOST_PITFALLS, MOST_WORDS, MOST_THINGS, MOST_SSH_NAMES, MOST_VERBS = 10, 6, 12, 8, 5
FILLERS = frozenset(
    [
        "a",
        "an",
        "and",
        "do",
        "does",
        "how",
        "i",
        "in",
        "is",
        "it",
        "my",
        "of",
        "the",
        "this",
        "to",
        "what",
        "where",
        "why",
        "will",
    ]
)
"""Words of a question that say nothing about what is looked for."""
FAILURES = ("oom", "out of memory")
"""Words for a failure: what to do about it comes before the screens that look for it."""
VERBS_MEAN = {
    "run": "start wandb mlflow tensorboard track docker container probe",
    "predict": "fit oom batch size largest smaller memory",
    "export": "prometheus grafana metrics",
    "devices": "json nvidia-smi csv",
    "ps": "json processes",
    "record": "save session",
    "replay": "recording open file",
    "check": "ci budget regression",
    "tune": "faster benchmark batch size",
    "why": "slow bottleneck",
    "attach": "ssh slurm kubernetes docker container",
    "completion": "bash zsh fish shell tab",
    "wait": "notify done finished",
}
"""Words that lead to a verb of the command line although its text does not have them."""
OFTEN_MEANT = {
    "overview": "cpu gpu utilisation utilization temperature power clock host ram jobs home start",
    "doctor": "oom slow hang hung stuck crash error wrong why bottleneck nan version python cuda "
    "driver torch environment check",
    "time": "slow why bottleneck speed mfu flops waits idle ledger input dataloader data",
    "look": "slow kernels idle",
    "work": "mfu flops roofline",
    "log": "events history errors output",
    "memory": "oom vram gpu out of memory leak bytes fragmentation",
    "lab": "benchmark compare experiment amp bf16 batch size compile settings demo",
    "lab_repeat": "compare a b",
    "lab_view": "compare",
    "processes": "kill who ps top users user tree columns nvidia-smi",
    "signal": "kill end stop terminate interrupt",
    "attach": "probe inject ssh remote host",
    "stacks": "hang hung stuck where traceback py-spy",
    "profile": "slow kernels trace perfetto",
    "snapshot": "oom memory allocator",
    "what_if": "oom smaller checkpointing batch size fit",
    "theme": "colours dark light mode background",
    "copy": "clipboard text",
    "report": "export share html page save print",
    "zoom": "history window time range longer",
    "zoom_back": "window time range shorter",
    "replay_back": "history rewind undo back in time travel",
    "faster": "refresh rate update interval sampling hz speed",
    "slower": "refresh rate update interval sampling hz speed",
    "filter": "search find grep",
    "help": "keys bindings shortcuts manual docs mouse",
    "redraw": "refresh",
    "back": "close",
    "quit": "exit leave close",
}
"""Words that lead to an action although neither its name nor its help has them."""


class PaletteEntry(NamedTuple):
    """One line of the palette.

    ``name`` is stable, and remembered when the entry was chosen; "" for what is not remembered.
    ``reason`` says why it is not possible now. ``also`` has other words that lead to it.
    """

    name: str
    title: str
    about: str
    run: Callable[[], object]
    keys: str = ""
    kind: str = ""
    reason: str = ""
    also: str = ""
    elsewhere: bool = False
    """Whether it acts on another tab only, and goes there first."""
    here: bool = False
    """Whether it acts on this tab, and not on all."""


def of_screen(session: Session, screen: Screen[Any]) -> Iterator[PaletteEntry]:
    """Yield what the screen below the palette has keys for, besides the actions."""
    for key in in_order(keys_of(type(screen))):
        action = key.binds[0][1]
        if not key.via and action not in ("keys_here", "palette_here"):
            yield PaletteEntry(
                f"{type(screen).__name__} {action}",
                key.label,
                key.help,
                partial(screen.call_later, screen.run_action, action),
                shown_whole(key),
                "here",
                session.why_not(key.needs) if key.needs else "",
            )


def of_actions(app: App[Any]) -> Iterator[PaletteEntry]:
    """Yield every action of the registry; one for another tab goes there first."""
    own = program(app)
    for action in ACTIONS:
        if action.name in ("palette", "down", "up"):
            continue
        tabs = ", ".join(BY_NAME[tab].label for tab in action.where)
        elsewhere = bool(action.where) and not action.applies(own.tab_shown())
        yield PaletteEntry(
            action.name,
            action.label,
            f"{action.help} ({tabs})" if elsewhere else action.help_on(own.tab_shown()),
            partial(own.carry_out, action.name),
            " ".join(key_text(key) for key in action.keys[:2]),
            "",
            own.session.why_not(action.name),
            OFTEN_MEANT.get(action.name, ""),
            elsewhere,
            bool(action.where) and not elsewhere,
        )


def of_commands(app: App[Any]) -> Iterator[PaletteEntry]:
    """Yield what has no key of its own."""
    own = program(app)
    yield PaletteEntry(
        "save picture",
        "Save a picture (SVG)",
        "this screen as an SVG file",
        partial(own.after_palette, own.save_picture),
        also="screenshot image export png",
    )
    yield PaletteEntry(
        "settings",
        "Settings",
        "all values and their source, and the path of the file",
        lambda: own.open("settings"),
        also="config preferences options alerts rate mouse ascii configuration",
    )
    words = {
        "ansi": "the terminal's own sixteen colours",
        "colour-blind": "dark; states stay distinct with any colour vision",
    }
    for name, theme in THEME_NAMES.items():
        yield PaletteEntry(
            f"theme {name}",
            f"Theme {name}",
            words.get(name, f"{name} background"),
            partial(own.choose_theme, name),
            also="colours colors theme",
            reason="in use" if app.theme == theme else "",
        )
    yield PaletteEntry(
        "dead job",
        "A dead job",
        "which rank failed first, from a folder of its logs and dumps",
        lambda: own.open("dead_job"),
        also="doctor post-mortem died crashed killed hang timeout nccl flight recorder logs",
    )
    yield PaletteEntry(
        "attach elsewhere",
        "Attach to another host",
        "type a host of ~/.ssh/config, user@host, slurm:JOB or k8s:NAMESPACE/POD",
        lambda: own.open("connect"),
        also="ssh remote slurm kubernetes k8s docker container connect user@host",
        reason=own.why_no_host(),
    )


def typed(app: App[Any], query: str) -> Iterator[PaletteEntry]:
    """Yield the command that is typed in full: a host to attach to, or a folder to examine."""
    own = program(app)
    path = query.strip()
    if path.startswith(("/", "~", "./", "../")) and os.path.isdir(os.path.expanduser(path)):
        yield PaletteEntry(
            "",
            f"Examine the dead job in {path}",
            "which rank failed first, from what it left there",
            partial(own.open, "dead_job", path),
            kind="folder",
            also=path,
        )
    words = query.split()
    is_attach = words[:1] == ["attach"]
    text = "".join(words[1:]) if is_attach else query.strip()
    if text and (is_attach or _is_place(text)):
        yield _attach_to(own, text, "show this host too")


def of_ssh(app: App[Any], query: str) -> Iterator[PaletteEntry]:
    """Yield the hosts of the user's ssh configuration, but for one that is typed in full."""
    own = program(app)
    for name in own.ssh_names():
        if query.split() != ["attach", name]:  # that is offered by ``typed``
            yield _attach_to(own, name, "a host of your ssh configuration")


def _attach_to(own: Program, text: str, about: str) -> PaletteEntry:
    """Return the entry that shows a host as well."""
    return PaletteEntry(
        "",
        f"Attach to {text}",
        about,
        partial(own.after_palette, partial(own.connect, text)),
        kind="host",
        reason=own.why_no_host(),
        also=text,
    )


def _is_place(text: str) -> bool:
    from ...attach.targets import is_remote_word

    return " " not in text and is_remote_word(text)


def of_verbs(app: App[Any]) -> Iterator[PaletteEntry]:
    """Yield the verbs of the command line, which are copied to be pasted into a shell."""
    own = program(app)
    from ...cli.main import VERBS

    for verb, does in VERBS.items():
        command = f"gpuscope {verb}"
        yield PaletteEntry(
            "",
            command,
            f"in a shell: {does}",
            partial(_copy_command, app, own, command),
            kind="shell",
            also=f"{VERBS_MEAN.get(verb, '')} command line",
        )


def _copy_command(app: App[Any], own: Program, command: str) -> None:
    app.copy_to_clipboard(command)
    own.say(f"copied for a shell: {command}. With --help it shows its options")


def of_things(app: App[Any]) -> Iterator[PaletteEntry]:
    """Yield devices, jobs, processes and hosts by their names."""
    own = program(app)
    session = own.session
    host = session.host
    if host is not None:
        for device in host.devices:
            d = device.definition
            size = f", {bytes_text(d.total_bytes)}" if d.total_bytes else ""
            yield PaletteEntry(
                "",
                f"GPU {d.index}",
                f"{short_model(d.name)}{size} on {host.name}",
                partial(own.open, "device", device.key),
                kind="GPU",
                also=f"{d.uuid or ''} device card temperature power",
                reason="it is gone" if device.gone is not None else "",
            )
        for job in host.jobs:
            ranks = len(job.trainers) or len(job.processes)
            yield PaletteEntry(
                "",
                job.title,
                f"{ranks} process{'es' * (ranks != 1)} of {job.user or 'an unknown owner'}",
                partial(own.open, "job", job.key),
                kind="job",
                also="job training run",
                reason="" if job.trainers else "no probe is in it",
            )
        for process in host.processes:
            p = process.definition
            yield PaletteEntry(
                "",
                f"pid {p.pid}",
                f"{p.command or p.name or 'unknown'} · {p.user or 'owner unknown'}",
                partial(own.open, "pid", host, p.pid),
                kind="process",
                also="process",
                reason="it has ended" if process.gone is not None else "",
            )
    if session.many and session.hosts is not None:
        for source in session.hosts.sources:
            one = session.host_of(source.key)
            yield PaletteEntry(
                "",
                one.name if one is not None else source.label,
                f"host{', ' + one.link.state if one is not None else ''}",
                partial(own.after_palette, partial(own.look_at, source.key)),
                kind="host",
                also=f"host node {source.key} {source.label}",
            )


def of_pitfalls(app: App[Any]) -> Iterator[PaletteEntry]:
    """Yield the pages of the pitfalls."""
    own = program(app)
    from ...doctor.explain import words_of
    from ...doctor.table import load

    for row in load().values():
        yield PaletteEntry(
            f"pitfall {row.id}",
            row.title,
            row.id,
            partial(own.open, "pitfall", row),
            kind="pitfall",
            also=words_of(row),
        )


def of_words(app: App[Any]) -> Iterator[PaletteEntry]:
    """Yield the words of the glossary."""
    own = program(app)
    from ...text.glossary import load

    for term in load().values():
        yield PaletteEntry(
            f"word {term.term}",
            term.term,
            term.meaning,
            partial(_explain, own, term),
            kind="word",
            also=f"{' '.join(term.also)} glossary",
        )


def _explain(own: Program, term: Term) -> None:
    own.open("word", term)


# ── finding ──


def matching_entries(app: App[Any], screen: Screen[Any], query: str) -> list[PaletteEntry]:
    """Return the entries for a query, the best first; what is not possible comes last.

    Without a query the last chosen come first, then the keys of the screen below, what acts on
    this tab, and the rest.
    What acts on another tab stands below what acts here, unless the query is its name.
    """
    from .row_words import what_opens

    own = program(app)
    opens = what_opens(screen, own.session.host)
    acts = [*of_screen(own.session, screen), *of_actions(app), *of_commands(app)]
    acts = [one._replace(about=opens) if opens and one.name == "open" else one for one in acts]
    if not query.strip():
        recent = recent_names(own.session)
        chosen = {entry.name: entry for entry in acts if entry.name in recent}
        first = [chosen[name]._replace(kind="recent") for name in recent if name in chosen]
        rest = [entry for entry in acts if entry.name not in chosen]
        rest.sort(key=lambda entry: (entry.elsewhere, not (entry.here or entry.kind)))
        return sorted([*first, *rest], key=lambda entry: bool(entry.reason))
    groups = (
        (acts, len(acts)),
        (list(of_things(app)), MOST_THINGS),
        (list(of_ssh(app, query)), MOST_SSH_NAMES),
        (list(of_verbs(app)), MOST_VERBS),
        (list(of_pitfalls(app)), MOST_PITFALLS),
        (list(of_words(app)), MOST_WORDS),
    )
    scored = _hits(groups, query) or _hits(groups, _telling(query))
    typed_words = " ".join(query.casefold().split())
    scored.sort(
        key=lambda hit: (
            bool(hit[1].reason),
            hit[1].elsewhere and hit[1].title.casefold() != typed_words,
            -hit[0],
        )
    )
    found = [entry for _, entry in scored]
    if typed_words in FAILURES:
        fixes = [entry for entry in found if entry.kind == "pitfall"][:1]
        found = [*fixes, *(entry for entry in found if entry not in fixes)]
    return [*typed(app, query), *found]


def _hits(
    groups: Sequence[tuple[Sequence[PaletteEntry], int]], query: str
) -> list[tuple[int, PaletteEntry]]:
    """Return the entries that fit, with their points, so many of each group at most."""
    out: list[tuple[int, PaletteEntry]] = []
    for entries, most in groups:
        hits = [(score(entry, query), entry) for entry in entries]
        out += sorted((hit for hit in hits if hit[0]), key=lambda hit: -hit[0])[:most]
    return out


def _telling(query: str) -> str:
    """Return a question without the words that say nothing about what is looked for."""
    words = query.casefold().replace("?", " ").split()
    return " ".join(word for word in words if word not in FILLERS) or query


def score(entry: PaletteEntry, query: str) -> int:
    """Return how well an entry fits a query; 0 where a word of the query is not in it."""
    title, also = entry.title.casefold(), entry.also.casefold()
    about, total = entry.about.casefold(), 0
    does = entry.kind in ("", "shell")  # an action, or a command for a shell
    meant = 95 if does else 70  # what is often meant, before what has the word
    for word in query.casefold().split():
        points = max(
            _points(title, word, 100), _points(also, word, meant), _points(about, word, 30)
        )
        if not points and entry.keys.casefold() == word:
            points = 90
        if not points:
            return 0
        total += points
    typed_words = " ".join(query.casefold().split())
    if title == typed_words:
        total += 200
    elif title.startswith(typed_words) and not entry.kind:  # an action that is being typed
        total += 50
    return total + (10 if does else 0)


def _points(text: str, word: str, most: int) -> int:
    """Return the points of one word: most where a word of the text is the same."""
    if word not in text:
        return 0
    words = text.replace(".", " ").replace("-", " ").replace("(", " ").split()
    if word in words:
        return most
    if any(one.startswith(word) for one in words):
        return most * 4 // 5
    return most // 4 if len(word) > 3 else 0


RECENT_KEPT = 6


def recent_names(session: Session) -> list[str]:
    """Return the names of what was chosen last, the newest first."""
    return [name for name in session.state.recent.split("\n") if name]


def remember(session: Session, entry: PaletteEntry) -> None:
    """Keep that an entry was chosen, where it has a name."""
    if entry.name:
        kept = [name for name in recent_names(session) if name != entry.name]
        session.state.recent = "\n".join([entry.name, *kept][:RECENT_KEPT])
