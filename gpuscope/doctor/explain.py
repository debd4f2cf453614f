"""The pitfall table for people: the list, one row in full, and the pages of the documentation."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..text.width import wrap
from . import table
from .finding import Pitfall
from .report import fix_sentences

if TYPE_CHECKING:
    from ..text.styled import Line
    from .finding import Fix

PAGE = "docs/pitfalls.md"
MORE = "gpuscope doctor --explain ID"


def document(row: Pitfall) -> dict[str, Any]:
    """Return a row as JSON. What it does not have is null."""
    found = {
        key: None if value == "" else value for key, value in asdict(row).items() if key != "fixes"
    }
    fixes = [
        {key: None if value == "" else value for key, value in asdict(fix).items()}
        for fix in row.fixes
    ]
    return {**found, "fixes": fixes}


def listed(rows: Iterable[Pitfall], width: int) -> list[Line]:
    """Return a line for each pitfall, and how to see more."""
    known = list(rows)
    column = max(len(row.id) for row in known) + 2
    out: list[Line] = []
    for row in known:
        parts = wrap(row.title, max(width - column, 20))
        out.append([(f"{row.id:<{column}}", "accent"), (parts[0], "text")])
        out += [[(" " * column, ""), (part, "text")] for part in parts[1:]]
    return [*out, [], [(f"{len(known)} pitfalls. One in full:  {MORE}", "muted")]]


def words_of(row: Pitfall) -> str:
    """Return what a search finds a pitfall by, besides its title."""
    return f"{row.id.replace('-', ' ')} {' '.join(row.causes)} {row.symptom}"


def matching(rows: Iterable[Pitfall], query: str) -> list[Pitfall]:
    """Return the pitfalls that have all words of a query; first those that have them in the name.

    The palette of the screens searches the same words.
    """
    words = query.casefold().split()

    def has(text: str) -> bool:
        return all(word in text.casefold() for word in words)

    found = [row for row in rows if words and has(f"{row.id} {row.title} {words_of(row)}")]
    return sorted(found, key=lambda row: not has(f"{row.id} {row.title} {' '.join(row.causes)}"))


def found_lines(rows: Sequence[Pitfall], query: str, width: int) -> list[Line]:
    """Return a line for each pitfall that a search has found, and how to see one in full."""
    *found, more = listed(rows, width)
    return [[(f"Pitfalls with the words: {query}", "title")], [], *found, more]


def explained(row: Pitfall, width: int) -> list[Line]:
    """Return a row in full."""
    out: list[Line] = [[(row.id, "title"), (f"  {row.title}", "text")], []]
    out += _part("Symptoms", row.symptom, width)
    for number, fix in enumerate(row.fixes, 1):
        out += _fix(f"Fix {number}", fix, width)
    out += _part("Now", row.now, width)
    out += _part("Skip if", row.not_when, width)
    out += _part("Trade-off", row.cost, width)
    if row.verify:
        out += [[("Reproduce it here", "accent")], [("  " + row.verify, "text")], []]
    for head, ids in _related(row):
        out += _part(head, ", ".join(ids), width)
    if row.causes:
        out += _part("Found as", ", ".join(row.causes), width)
    return [*out, *_from(row, width)]


def background(row: Pitfall, shown: Collection[Fix], width: int, over: bool = False) -> list[Line]:
    """Return a pitfall's row without its title and the fixes that are ``shown`` already.

    Of a training that is ``over`` what helps while it runs is left out.
    """
    out: list[Line] = _part("Symptoms", row.symptom, width)
    seen = {(fix.code, fix.environment, fix.command) for fix in shown}
    names, helped = {_name(fix) for fix in shown}, over or any(fix.now for fix in shown)
    others = False
    for fix in row.fixes:
        told = (fix.code, fix.environment, fix.command) in seen or _name(fix) in names
        if not told and not (fix.now and helped):
            out += _fix("Or" if others else "Another fix", fix, width)
            others = True
    return [*out, *_from(row, width)]


def _name(fix: Fix) -> str:
    """Return what a fix does, without its conditions: a finding has the same one with its own."""
    return re.split(r"[,.:;]", fix.title, maxsplit=1)[0].casefold()


def _from(row: Pitfall, width: int) -> Iterator[Line]:
    yield [("Sources", "accent")]
    for source in row.sources:
        parts = [source] if source.startswith("https://") else wrap(source, max(width - 2, 20))
        yield from ([("  " + part, "muted")] for part in parts)


def _part(head: str, text: str, width: int) -> list[Line]:
    return [
        [(head, "accent")],
        *([("  " + part, "text")] for part in wrap(text, max(width - 2, 20))),
        [],
    ]


def _fix(label: str, fix: Fix, width: int) -> list[Line]:
    out: list[Line] = [
        [(label, "accent"), ("  helps without a restart" if fix.now else "", "muted")]
    ]
    out += [[("  " + part, "text")] for part in wrap(fix_sentences(fix), max(width - 2, 20))]
    out += [
        [("    " + sign + text, "faint" if sign == "- " else "text")]
        for sign, text in fix.signed_code()
    ]
    out += [[("    " + text, "text")] for text in (fix.environment, fix.command) if text]
    return [*out, []]


# ── the page ──────────────────────────────────────────────────────────────────────────────────────

_INTRODUCTION = """# What the doctor knows

These are the pitfalls that `gpuscope doctor` can find. Each is named after its main fix; a finding in a JSON
document has that name under `pitfall`.

```
gpuscope doctor --list              all of them
gpuscope doctor --explain ID        one of them, as below
gpuscope doctor --explain oom       those that have this word
gpuscope doctor --symptom 'WORDS'   those that your own words point to: 'loss is nan in fp16'
```

This page is made from `gpuscope/doctor/pitfalls.toml` by `python -m gpuscope.doctor.table`.

"""  # noqa: E501


def page(rows: Iterable[Pitfall]) -> str:
    """Return the page of the documentation, in Markdown."""
    known = list(rows)
    return _INTRODUCTION + _index(known, "#{}") + "\n" + "\n".join(map(_section, known))


def _index(rows: Iterable[Pitfall], place: str) -> str:
    lines = ["| name | what is wrong |", "|---|---|"]
    lines += [f"| [`{row.id}`]({place.format(row.id)}) | {_safe(row.title)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _section(row: Pitfall) -> str:
    lines = [
        f"## {row.id}",
        "",
        f"**{_safe(row.title)}.**",
        "",
        f"*Symptoms.* {_safe(row.symptom)}",
        "",
    ]
    lines += _fixes(row, " " * 3)
    for head, text in _advice(row):
        lines += [f"*{head}.* {_safe(text)}", ""]
    for head, ids in _related(row):
        lines += [f"*{head}:* " + ", ".join(f"[`{one}`](#{one})" for one in ids), ""]
    if row.verify:
        lines += [f"*Reproduce it here:* `{row.verify}`", ""]
    if row.causes:
        lines += ["*Found as:* " + ", ".join(f"`{cause}`" for cause in row.causes), ""]
    return "\n".join([*lines, f"*Sources:* {'; '.join(map(_source, row.sources))}", ""])


def site_pages(rows: Iterable[Pitfall]) -> dict[str, str]:
    """Return the pages of the documentation site by path: a list, and a page for each pitfall."""
    known = list(rows)
    introduction = _INTRODUCTION.replace(", as below", "").partition("This page is made from")[0]
    return {
        "pitfalls.md": introduction + _index(known, "pitfalls/{}.md"),
        **{f"pitfalls/{row.id}.md": _site_page(row) for row in known},
    }


def _site_page(row: Pitfall) -> str:
    lines = [f"# {row.id}", "", f"**{_safe(row.title)}.** [All pitfalls](../pitfalls.md)", ""]
    lines += ["## Symptoms", "", _safe(row.symptom), "", "## Fixes", ""]
    lines += _fixes(row, " " * 4)
    for head, text in _advice(row):
        lines += [f"## {head}", "", _safe(text), ""]
    for head, ids in _related(row):
        lines += [f"## {head}", "", ", ".join(f"[`{one}`]({one}.md)" for one in ids), ""]
    if row.verify:
        lines += ["## How to reproduce it", "", "```sh", row.verify, "```", ""]
    if row.causes:
        lines += ["## Found as", "", ", ".join(f"`{cause}`" for cause in row.causes), ""]
    lines += ["## Sources", "", *(f"- {_source(one)}" for one in row.sources), ""]
    return "\n".join(lines)


def _fixes(row: Pitfall, indent: str) -> list[str]:
    lines = []
    for number, fix in enumerate(row.fixes, 1):
        now = " *Helps without a restart.*" if fix.now else ""
        lines += [f"{number}. {_safe(fix_sentences(fix))}{now}", "", *_block(fix, indent)]
    return lines


def _advice(row: Pitfall) -> tuple[tuple[str, str], ...]:
    return ("Now", row.now), ("Skip if", row.not_when), ("Trade-off", row.cost)


def _related(row: Pitfall) -> list[tuple[str, list[str]]]:
    """Return the pitfalls that a pitfall can come of and lead to, each with its head."""
    related = ("Can come of", table.comes_of(row)), ("Can lead to", table.leads_to(row))
    return [one for one in related if one[1]]


def _source(text: str) -> str:
    return f"<{text}>" if text.startswith("https://") else _safe(text)


def _block(fix: Fix, indent: str) -> list[str]:
    """Return what a reader copies, as fenced blocks inside the list's item."""
    out: list[str] = []
    if fix.before:
        out += ["```diff", *(sign + text for sign, text in fix.signed_code()), "```", ""]
    elif fix.code:
        out += [
            "```python" if "volumeMounts" not in fix.code else "```yaml",
            *fix.code.splitlines(),
            "```",
            "",
        ]
    shell = [text for text in (fix.environment, fix.command) if text]
    if shell:
        out += ["```sh", *shell, "```", ""]
    return [(indent + line).rstrip() for line in out]


def _safe(text: str) -> str:
    """Return prose that Markdown leaves as it is."""
    for char in "\\`*_[]<|":
        text = text.replace(char, "\\" + char)
    return text
