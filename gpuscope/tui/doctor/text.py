"""This module makes the lines of the Doctor tab, and its lines on the Overview.

There is a row for each finding, and one finding in full. It is pure; strings of findings are
cleaned already (``doctor.report.finish``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ...doctor.alike import DEVICE
from ...doctor.finding import SEVERITY_TOKENS as SEVERITY_TOKENS
from ...doctor.report import evidence_lines, fix_sentences
from ...doctor.steps import KILL, STACKS, copied_steps, marked_step, now_of, steps_of
from ...model.ended_jobs import number_text
from ...model.pace import pace_of
from ...store.view import by_key
from ...text import styled
from ...text.ranges import ranges_text
from ...text.styled import Line, Piece
from ...text.units import count_text
from ..background.finding_history import FOLDED, Case, CaseGroup, all_well, group_cases
from ..shell.keymap import key_of
from ..widgets.table import GUTTER, Column, TableRow
from .as_it_was import last_ended
from .case_times import duration_of_case, since_text
from .checked_figures import decides_in
from .proof import Proof

if TYPE_CHECKING:
    from ...doctor.finding import Finding, Fix, Pitfall
    from ...model.ended_jobs import EndedJob
    from ...store.view import HostView
    from ..background.doctor_watch import DoctorWatch
    from ..theme import Glyphs

NOTHING, UNEXAMINED = "Nothing wrong was found", "Nothing has been checked yet"
OVER = "No training with a probe runs any more"
ABOUT = "about"
"""The key of the row that says what was examined."""
COLUMNS = (
    Column("what", "WHAT", 44, flex=1, whole=True),
    Column("where", "WHERE", 0, most=44, priority=1, whole=True),
    Column("sure", "CONFIDENCE", 0, priority=3),
    Column("since", "SINCE", 0, align="right", priority=2),
)
WHERE_CELLS = 22
"""What WHERE has in any case, if it is there at all: ``rank 0, GPU 0, pid 4711``."""
MOST_CELLS = 20
TABLE_GAP, MOST_SPARE = 2, 24
_GPU, _OF_ONE = re.compile(r"\bGPU \d+\b"), re.compile(r"\d|\bits?\b")
"""A GPU in a title, and what in the rest of one is of that GPU alone."""
LABEL = 10
"""Cells of the words in front of the lines of a finding."""


def glyph_of(severity: str, glyphs: Glyphs) -> str:
    return {"problem": glyphs.bad, "warning": glyphs.warn}.get(severity, glyphs.idle)


def sign_of(case: Case, glyphs: Glyphs) -> Piece:
    """Return the sign of a finding: of its severity where it holds on what lives now.

    So the list has as many such signs as the name of its tab counts.
    """
    severity = case.finding.severity
    if case.past or case.dead:
        return f"{glyphs.idle} ", "faint" if case.past else "muted"
    return f"{glyph_of(severity, glyphs)} ", SEVERITY_TOKENS[severity]


# ── the list ──


def row_of(
    group: CaseGroup, host: HostView, glyphs: Glyphs, ended: Sequence[EndedJob] = ()
) -> TableRow:
    """Return a finding in a line; ``ended`` are the jobs that the folded row stands for."""
    case, finding = group.first, group.first.finding
    text = "faint" if case.past else "title" if case.grave and not case.dead else "text"
    where, (times, title) = where_of(group, host), told_of(group, ended)
    where = where if times else _beyond(title, where)
    muted = "faint" if case.past else "muted"
    return TableRow(
        group.key,
        {
            "what": [
                sign_of(case, glyphs),
                (times, "muted"),
                (title, text),
            ],
            "where": [(where, muted)] if where else "",
            "sure": confidence_of(finding),
            "since": duration_of_case(case, host, brief=True),
        },
        muted,
    )


def columns(rows: Sequence[TableRow], cells: int) -> list[Column]:
    """Return the columns that are not empty, for a table of this width.

    CONFIDENCE goes where WHAT would be cut short for it. WHERE gets what it needs as far as WHAT
    leaves it. Where all rows are of one process it goes if any of them would say less for it. Else
    it is the last to go: it says of which job or rank a row is. What nobody needs is WHAT's; much
    of it stays blank at the right, so that the columns stand beside each other.
    """
    longest = {
        one.key: max((_cells_of(row, one.key) for row in rows), default=0) for one in COLUMNS
    }
    kept = [one for one in COLUMNS if longest[one.key] or one.key == "what"]
    wide = {
        one.key: min(one.most or MOST_CELLS, max(longest[one.key], len(one.title)))
        for one in kept
        if one.key != "what"
    }
    room = cells - GUTTER - TABLE_GAP * (len(kept) - 1) - sum(wide.values()) + wide.get("where", 0)
    if room < longest["what"] and "sure" in wide:  # the finding below says it too
        kept = [one for one in kept if one.key != "sure"]
        del wide["sure"]
    if "where" in wide:
        others = sum(size for key, size in wide.items() if key != "where")
        left = cells - GUTTER - TABLE_GAP * (len(kept) - 1) - others
        least = min(WHERE_CELLS, wide["where"])
        told = [styled.cells(_what_in(row, left - least)) for row in rows]
        alone = [styled.cells(_what_in(row, left + TABLE_GAP)) for row in rows]
        wide["where"] = max(least, min(left - max(told, default=0), wide["where"]))
        found = [re.search(r"\bpid \d+", styled.plain(_line_of(row, "where"))) for row in rows]
        processes = {pid[0] for pid in found if pid is not None}
        if told != alone and len(processes) < 2:  # the line below says where as well
            kept = [one for one in kept if one.key != "where"]
    kept = [one._replace(width=wide.get(one.key, one.width)) for one in kept]
    taken = sum(wide.get(one.key, longest["what"]) + TABLE_GAP for one in kept)
    if cells - taken > MOST_SPARE:
        most = max(kept[0].width, longest["what"] + TABLE_GAP)
        kept[0] = kept[0]._replace(most=most)
    return kept


def _cells_of(row: TableRow, key: str) -> int:
    return styled.cells(_line_of(row, key))


def _line_of(row: TableRow, key: str) -> Line:
    cell = row.cells.get(key, "")
    return cell if isinstance(cell, list) else [(str(cell), "")]


def _what_in(row: TableRow, cells: int) -> Line:
    """Return what of WHAT is shown in so many cells: it ends with a whole part."""
    return styled.cut_whole(_line_of(row, "what"), cells)


def confidence_of(finding: Finding) -> str:
    """Return how sure a finding is, in a word.

    One that rests only on how often it is the cause is called a guess.
    """
    return "guess" if finding.confidence == "prior" else finding.confidence


def where_of(group: CaseGroup, host: HostView | None = None) -> str:
    """Return where its findings are: of devices all of them, else the place of the first.

    The script comes before the place: that of the finding, else that of its job on ``host``.
    """
    places = [case.finding.where for case in (group.first, *group.others)]
    devices = [match for place in places if (match := DEVICE.fullmatch(place))]
    if len(devices) == len(places):
        return f"GPU {ranges_text(int(match[1]) for match in devices)}{devices[0][2]}"
    job = by_key(host.jobs, group.first.job) if host is not None else None
    title = group.first.finding.job or (job.title if job is not None and job.trainers else "")
    return ", ".join(filter(None, (title, places[0])))


def _beyond(title: str, where: str) -> str:
    """Return the parts of a place, such as ``rank 0, GPU 0, pid 4711``, that a title leaves out."""
    if where and re.match(rf"{re.escape(where)}(?!\w)", title):
        return ""
    parts = where.split(", ")
    if not all(part[:1].isalpha() for part in parts):  # "GPU 0-2, 5" has no part that tells alone
        return where
    told = (rf"(?<!\w){re.escape(part)}(?![\w:])" for part in parts)
    return ", ".join(
        part
        for part, pattern in zip(parts, told, strict=True)
        if not re.search(pattern, title, re.IGNORECASE)  # "train.py:31" does not name the job
    )


def told_of(group: CaseGroup, ended: Sequence[EndedJob] = ()) -> tuple[str, str]:
    """Return for how many a finding stands, and its title.

    The title of one on several GPUs names them all, and leaves out figures, which are of the first.
    """
    title, where = group.first.finding.title, where_of(group)
    gpu = _GPU.search(title)
    if not group.others or gpu is None or not where.startswith(gpu[0][:4]):
        return _times(group, ended), title
    told = re.sub("^ is ", " are ", title[gpu.end() :])
    begin, colon, rest = (title[: gpu.start()] + where + told).partition(": ")
    return "", begin if _OF_ONE.search(rest) else begin + colon + rest


def _times(group: CaseGroup, ended: Sequence[EndedJob] = ()) -> str:
    """Return for how many a finding stands; of ended trainers each had an end of its own."""
    if group.ended > 1:
        return f"{number_text(ended) or f'{group.ended} ended'}, the last: "
    return f"{1 + len(group.others)}× " if group.others else ""


def about_row(watch: DoctorWatch, host: HostView, glyphs: Glyphs) -> TableRow:
    """Return the row of what was checked.

    It says that nothing is wrong, with what runs, or what could not be decided.
    """
    report = watch.report
    parts = [f"{len(report.problems)} unchecked"] if report.problems else []
    parts += [f"{len(report.abstained)} inconclusive"] if report.abstained else []
    folded = any(group.key == FOLDED for group in group_cases(watch.cases))
    parts += [number_text(watch.ended)] if watch.ended and not folded else []
    sign: Piece = (f"{glyphs.idle} ", "muted")
    if not all_well(watch.cases):
        what = "What was checked"
    elif not report.examined:
        what = OVER if last_ended(host) is not None else UNEXAMINED
    elif is_undecided(watch, host):
        what = f"Nothing wrong so far: {_what_runs(host)}"
    else:
        sign, what = (f"{glyphs.ok} ", "ok"), f"Nothing wrong: {_what_runs(host)}"
    pieces: Line = [sign, (what, "text")]
    return TableRow(
        ABOUT, {"what": [*pieces, (f"  {' · '.join(parts)}" if parts else "", "muted")]}, "muted"
    )


def is_undecided(watch: DoctorWatch, host: HostView) -> bool:
    """Return whether a check needs more steps or a finding more time to be certain."""
    return bool(decides_in(host) or watch.pending)


def _what_runs(host: HostView) -> str:
    """Return the job with a probe that runs and its step, or how many such jobs run."""
    living = [t for job in host.jobs for t in job.trainers if t.gone is None]
    titles = [job.title for job in host.jobs if any(t.gone is None for t in job.trainers)]
    if len(titles) != 1:
        return f"{len(titles)} jobs train" if titles else "no training with a probe runs"
    steps = pace_of(living).steps_text
    return f"{titles[0]}, step {steps}" if steps else titles[0]


# ── one finding ──


def detail(
    group: CaseGroup,
    host: HostView,
    row: Pitfall | None,
    proof: Proof | str,
    mark: int | None,
    glyphs: Glyphs,
    cells: int,
    tight: bool = False,
    stack: Sequence[Line] = (),
    titled: bool = True,
    background: Sequence[Line] = (),
) -> list[Line]:
    """Return a finding in full, in lines of at most ``cells`` cells.

    What is to be copied may be longer. ``tight`` leaves out the blank lines between its parts.
    ``stack`` is where the trainer that it names stands now, ``background`` the rest of the
    pitfall's page. It is not ``titled`` where the list above shows its whole title.
    """
    gap: list[Line] = [] if tight else [[]]
    case, finding = group.first, group.first.finding
    out: list[Line] = []
    if titled:
        out += [*styled.hang([sign_of(case, glyphs)], [(finding.title, "title")], cells), *gap]
    replayed = bool(host.badge)
    steps = steps_of(finding, replayed)
    gain, more = finding.effect is None, len(copied_steps(finding, replayed)) - 1
    told = 1 + max(mark or 0, marked_step(finding, replayed) or 0)
    for number, fix in enumerate(steps[:told]):
        own = more if number == mark else None
        out += fix_lines(_label(steps, number), fix, own, gain, cells)
    out += gap
    out += with_label("How sure", [(_course(case, host), "muted")], cells)
    why = "Why"
    for evidence in finding.evidence:
        for line in evidence_lines(evidence, cells - LABEL):
            out.append([(f"{why:<{LABEL}}", "accent"), *line])
            why = ""
    if finding.effect is not None:
        out += with_label("Gain", [(finding.effect.text, "text")], cells)
    for number, other in enumerate(group.others[:6]):
        text = f"{other.finding.title} ({other.finding.where})"
        out += with_label("Also" if number == 0 else "", [(text, "muted")], cells)
    if len(group.others) > 6:
        out += with_label("", [(f"and {len(group.others) - 6} more", "muted")], cells)
    if stack:
        out += gap
        for number, line in enumerate(stack):
            head = f"{'Stack' if number == 0 else '':<{LABEL}}"
            out += styled.hang([(head, "accent")], line, cells)
    rest: list[Line] = []
    for number, fix in enumerate(steps[told:], told):
        label = _label(steps, number) or ("Or" if number == told else "")
        rest += fix_lines(label, fix, None, gain, cells)
    past = case.past or replayed
    if row is not None and not past and not any(fix.now for fix in finding.fixes):
        rest += with_label("Now", [(now_of(finding, row), "text")], cells)
    out += [*gap, *rest] if rest else []
    if row is not None and not case.dead:  # of a dead job they would advise on the next one
        out += gap
        out += with_label("Skip if", [(row.not_when, "muted")], cells)
        if not any(fix.cost for fix in steps) and row.cost.strip(".").casefold() != "none":
            out += with_label("Trade-off", [(row.cost, "muted")], cells)
    if isinstance(proof, Proof):
        out += [*gap, *_proof(proof, cells)]
    if row is not None:
        key = "" if background else key_of("open")
        out += [*gap, *with_label("Pitfall", pitfall_name(finding.pitfall, row, key), cells)]
    return [*out, *([[]] if background else ()), *background]


def pitfall_name(pitfall: str, row: Pitfall | None, key: str) -> Line:
    """Return the name of a pitfall, what it is, and the key for all of it where there is one."""
    out: Line = [(pitfall, "title"), (f": {row.title}" if row is not None else "", "text")]
    return [*out, *([("   ", "text"), (key, "bold accent"), (": all of it", "muted")] * bool(key))]


def _course(case: Case, host: HostView) -> str:
    """Return how sure a finding is, how grave, since when it holds, and where it is."""
    finding = case.finding
    parts = [confidence_of(finding), finding.severity]
    age = duration_of_case(case, host)
    if case.kind == "environment":
        parts.append("checked at the start")
    elif case.kind == "left":
        parts.append(f"it ended {age}")
    elif case.kind == "end":
        parts.append(f"seen {age}")
    elif case.past:
        parts.append(f"over: {age}")
    else:
        parts += filter(None, [since_text(case, host)])
    parts += [finding.where] if _beyond(finding.title, finding.where) else []
    return " · ".join(parts)


def _label(steps: Sequence[Fix], number: int) -> str:
    """Return the word in front of a step, "" where it is that of the step before."""
    words = ["Now" if fix.now else "Fix" for fix in steps[: number + 1]]
    return words[number] if words.index(words[number]) == number else ""


def fix_lines(
    label: str, fix: Fix, others: int | None, gain: bool, cells: int, screen: str = ""
) -> Iterator[Line]:
    """Yield a fix, each line of its code on a line of its own.

    ``others`` is set for the fix that is copied: the keys of ``screen`` that copy it, and mark one
    of so many others, are named.
    """
    lines = with_label(label, [(fix_sentences(fix, gain), "text")], cells)
    key: Line = []
    if others is not None:
        key = [("   ", "text"), (key_of("copy", screen), "bold accent"), (": copy", "muted")]
        more: Line = [("  ", "text"), (key_of("next_fix"), "bold accent")]
        more += [(f": {others} more", "muted")]
        last = styled.cells(lines[-1]) + styled.cells(key)
        if others and not last <= cells < last + styled.cells(more):  # the footer has it too
            key += more
    if styled.cells(lines[-1]) + styled.cells(key) > cells:  # a key alone on a line looks lost
        start, *words = lines.pop()  # so it gets the last words of the line above
        broken = with_label("", words, cells - styled.cells(key))
        lines += [[start, *broken[0][1:]], *broken[1:]]
    yield from lines[:-1]
    yield [*lines[-1], *key]
    indent: Piece = (" " * (LABEL + 2), "text")
    room = max(20, cells - LABEL - 6)
    for head, text in fix.signed_code():
        token = "faint" if head == "- " else "accent"
        own = len(text) - len(text.lstrip(" "))
        for number, line in enumerate(styled.wrap([(text[own:], token)], room - own)):
            yield [
                indent,
                (head if number == 0 else " " * (len(head) + 2), token),
                (" " * own, token),
                *line,
            ]

    def ends() -> Line:  # asked for only where there is a process to end
        return [(key_of("signal", screen), "bold accent"), (": end it, asks first", "muted")]

    if (stacks := STACKS.fullmatch(fix.command)) is not None:
        shows = f": the stacks of pid {stacks[1]}   "
        yield [indent, (key_of("stacks", screen), "bold accent"), (shows, "muted"), *ends()]
        return
    for text in filter(None, (fix.environment, fix.command)):
        key = [("   ", "text"), *ends()] if screen and text.startswith(KILL) else []
        for number, line in enumerate(styled.wrap([(text, "accent")], room)):
            yield [indent, *([("  ", "text")] if number else []), *line, *key]


def _proof(proof: Proof, cells: int) -> list[Line]:
    lines = with_label("Reproduce", [(proof.text, "accent")], cells)
    return [
        *lines[:-1],
        [*lines[-1], ("   ", "text"), (key_of("prove"), "bold accent"), (": in the Lab", "muted")],
    ]


def with_label(label: str, pieces: Sequence[Piece], cells: int) -> list[Line]:
    """Return a text with a label in front of it, wrapped beside the label."""
    if len(label) >= LABEL:
        label = label[: LABEL - 1]
    lines = styled.wrap(pieces, max(20, cells - LABEL))
    heads = [f"{label:<{LABEL}}", *[" " * LABEL] * (len(lines) - 1)]
    return [[(head, "accent"), *line] for head, line in zip(heads, lines, strict=True)]


# ── the Overview ──


def top(
    cases: Sequence[Case],
    glyphs: Glyphs,
    rows: int,
    leave_out: frozenset[str] = frozenset(),
    host: HostView | None = None,
    ended: Sequence[EndedJob] = (),
) -> list[tuple[str, Line]]:
    """Return the worst findings, as many as ``rows``: the key of each, and its line.

    The last line counts those left out. ``leave_out`` are causes that the screen names elsewhere.
    What is found of the machine and of a trainer on it is told once: it has one cure.
    ``ended`` are the jobs that the folded row stands for. With a ``host``, below each finding
    stands with the same key what to do first.
    """
    groups: list[CaseGroup] = []
    told: set[tuple[str, str]] = set()
    for group in group_cases(cases):
        pitfall, kind = group.first.finding.pitfall, group.first.kind
        other = {"environment": "live", "live": "environment"}.get(kind, "")
        if not group.first.grave or group.first.finding.cause in leave_out:
            continue
        if (pitfall, other) not in told:
            told.add((pitfall, kind))
            groups.append(group)
    out: list[tuple[str, Line]] = []
    for group in groups[:rows]:
        finding = group.first.finding
        times, title = told_of(group, ended)
        line = [sign_of(group.first, glyphs), (times, "muted"), (title, "text")]
        where = where_of(group, host) if times or not group.others else ""
        where = where if times else _beyond(title, where)
        line += [("  " + where, "faint")] if where else []
        out.append((group.key, line))
        if host is not None and (steps := steps_of(finding, bool(host.badge))):
            title = steps[0].title.rstrip(".")
            how = f" · how: tab {key_of('doctor')}, Doctor"
            out.append((group.key, [("  do first: ", "accent"), (title, "text"), (how, "muted")]))
    if len(groups) > rows and out:
        out[-1][1].append((f" · {count_text(len(groups) - rows, 'more finding')}", "muted"))
    return out
