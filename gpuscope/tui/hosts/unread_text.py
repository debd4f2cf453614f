"""What stands in place of the devices and charts of a host that has sent no reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...text import styled
from ...text.styled import Line
from ..shell.keymap import key_of
from ..theme import Glyphs
from .rows import mark_of
from .summary import HostSummary

NEEDS = (
    "a login that asks no question: a key in your ssh agent, a host key that you accepted",
    "Python 3.8 or newer there; gpuscope sends its agent along and installs nothing",
)


def unread_lines(
    one: HostSummary, others: Sequence[HostSummary], names: Mapping[str, str], glyphs: Glyphs,
    cells: int,
) -> list[Line]:  # fmt: skip
    """Return what a host needs to be read, and all that is wrong on the ``others``."""
    name = names.get(one.key, one.name)
    first: Line = [
        (f"{name} has sent no reading yet. ", "text"),
        ("Its GPUs and their load appear here with the first one. It needs", "muted"),
    ]
    lines = list(styled.wrap(first, cells))
    for text in NEEDS:
        lines += styled.hang([("  · ", "faint")], [(text, "muted")], cells)
    again: Line = [
        ("  · ", "faint"),
        (key_of("connect_again"), "accent"),
        (" tries again now", "muted"),
    ]
    lines += [again, [], [("Wrong on the other hosts", "title")]]
    wrong = [host for host in others if host.key != one.key and host.words]
    width = max((len(names.get(host.key, host.name)) for host in wrong), default=0)
    for host in wrong:
        for at, (grade, text) in enumerate(host.words):
            glyph, token = mark_of(grade, glyphs)
            shown = names.get(host.key, host.name) if at == 0 else ""
            head: Line = [(f"{glyph} ", token), (f"{shown:{width}}  ", "text")]
            lines += styled.hang(head, [(text, "text")], cells)
    if not wrong:
        lines.append([(f"{glyphs.ok} ", "ok"), ("nothing", "muted")])
    return [styled.cut(line, cells) for line in lines]
