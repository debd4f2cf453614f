"""Ideas that have one home, and the files that still have a second one.

The lists can only become shorter.

A file on a list that no longer needs to be there fails the test as well: take it off. The probe has
what little it needs of these ideas itself, because only the wire goes into a trainer with it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.fakes.collecting import collector_off

pytestmark = pytest.mark.slow  # make check runs it

ROOT = Path(__file__).parent.parent / "gpuscope"


Nodes = list[ast.AST]
KINDS = (
    *(ast.AnnAssign, ast.Assign, ast.BoolOp, ast.Call, ast.Constant),
    *(ast.FormattedValue, ast.IfExp, ast.Import, ast.JoinedStr, ast.Subscript),
)


def nodes_of(text: str) -> Nodes:
    """The parts of a module's syntax that the searches look at."""
    return [node for node in ast.walk(ast.parse(text)) if isinstance(node, KINDS)]


@cache
@collector_off()
def modules() -> dict[str, Nodes]:
    """Every module, by its path below the package."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in sorted(ROOT.rglob("*.py"))}
    return {name: nodes_of(text) for name, text in texts.items()}


def names_of(target: ast.AST) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id


def assigned(nodes: Nodes) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a module assigns, and what they are given to.

    What is just another name for something is left out.
    """
    for node in nodes:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for name in (name for target in targets for name in names_of(target)):
                yield name, node.value


def called(nodes: Nodes) -> Iterator[str]:
    """What is called, as ``name`` or ``name.attribute``."""
    for node in nodes:
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node.func.id
            elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
                yield f"{node.func.value.id}.{node.func.attr}"


def defines_units(nodes: Nodes) -> bool:
    return any(re.fullmatch(r"_?[KMGT]IB", name) for name, _ in assigned(nodes))


def writes_bytes(nodes: Nodes) -> bool:
    """A unit of bytes that stands directly behind a number with a format, or behind a quotient."""
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            for value, unit in zip(node.values, node.values[1:], strict=False):
                if (
                    isinstance(value, ast.FormattedValue)
                    and (value.format_spec is not None or isinstance(value.value, ast.BinOp))
                    and isinstance(unit, ast.Constant)
                    and re.match(r" ?([KMGT]i?B|kB)\b", str(unit.value))
                ):
                    return True
    return False


def writes_durations(nodes: Nodes) -> bool:
    """A unit of time that stands directly behind a number with a format, or behind a quotient.

    A limit that is a constant, as ``{LIMIT_SECONDS:.0f} s``, is left out.
    """
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            for value, unit in zip(node.values, node.values[1:], strict=False):
                if (
                    isinstance(value, ast.FormattedValue)
                    and (value.format_spec is not None or isinstance(value.value, ast.BinOp))
                    and not ast.unparse(value.value).isupper()
                    and isinstance(unit, ast.Constant)
                    and re.match(r" ?(µs|ms|s|min|m|h|d)\b", str(unit.value))
                ):
                    return True
    return False


def defines_lines(nodes: Nodes) -> bool:
    return any(
        name in ("Piece", "Line") and isinstance(value, ast.Subscript)
        for name, value in assigned(nodes)
    )


def starts_processes(nodes: Nodes) -> bool:
    starting = (
        "subprocess.Popen",
        "subprocess.run",
        "subprocess.check_output",
        "asyncio.create_subprocess_exec",
    )
    return any(name in starting for name in called(nodes))


def kills_groups(nodes: Nodes) -> bool:
    return "os.killpg" in called(nodes)


def shortens_home(nodes: Nodes) -> bool:
    return "Path.home" in called(nodes)


def takes_middle(nodes: Nodes) -> bool:
    """Takes the value in the middle, as of sorted ones for their median."""
    halves = [
        n.slice for n in nodes if isinstance(n, ast.Subscript) and isinstance(n.slice, ast.BinOp)
    ]
    return any(re.fullmatch(r"len\(\w+\) // 2", ast.unparse(one)) for one in halves)


def replaces_files(nodes: Nodes) -> bool:
    return any(name in ("os.replace", "os.rename") for name in called(nodes))


def parses_stat(nodes: Nodes) -> bool:
    """Cuts at the last parenthesis, as only /proc/PID/stat asks for."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            first = node.args[0]
            cuts = node.func.attr in ("rpartition", "rfind", "rsplit")
            if cuts and isinstance(first, ast.Constant) and first.value in (")", b")"):
                return True
    return False


def defines_exit_codes(nodes: Nodes) -> bool:
    """Tell whether a module defines exit codes of its own.

    They look like ``EXIT_OK = 0`` or ``EXIT_OK, EXIT_USAGE = 0, 64``; a time such as
    ``EXIT_SECONDS`` is none.
    """
    for name, value in assigned(nodes):
        numbers = value.elts if isinstance(value, ast.Tuple) else [value]
        if re.match(r"EXIT_(?!SECONDS)[A-Z]+", name) and all(
            isinstance(one, ast.Constant) and isinstance(one.value, int) for one in numbers
        ):
            return True
    return False


def looks_for_folders(nodes: Nodes) -> bool:
    for node in nodes:
        if isinstance(node, ast.Constant) and re.fullmatch(
            r"XDG_(CACHE|CONFIG|DATA|STATE)_HOME", str(node.value)
        ):
            return True
        if isinstance(node, ast.Import) and any(one.name == "platformdirs" for one in node.names):
            return True
    return False


def counts_cells(nodes: Nodes) -> bool:
    return any(name.endswith(("east_asian_width", "cell_len")) for name in called(nodes))


def reads_machine(nodes: Nodes) -> bool:
    """Reads the available memory or the id of the boot from /proc."""
    return any(
        isinstance(node, ast.Constant)
        and (
            node.value in (b"MemAvailable", "MemAvailable", "/proc/sys/kernel/random/boot_id")
            or (
                isinstance(node.value, (str, bytes))
                and re.search(r"MemAvailable.?:", str(node.value))
            )
        )
        for node in nodes
    )


def writes_ranges(nodes: Nodes) -> bool:
    """Writes numbers as ranges: one number by itself, else the first and the last with a dash."""
    for node in nodes:
        if isinstance(node, ast.IfExp) and isinstance(node.orelse, ast.JoinedStr):
            parts = node.orelse.values
            if len(parts) == 3 and isinstance(parts[1], ast.Constant) and parts[1].value == "-":
                return True
    return False


def words_findings(nodes: Nodes) -> bool:
    """Gives a finding of the doctor or a fix words that stand in code. Both take keywords only."""
    texts = ("title", "verify", "before", "code", "environment", "command", "cost")
    keywords = {"Finding": texts, "Fix": texts, "replace": ("title",)}
    for node in nodes:
        if isinstance(node, ast.Call):
            given = [
                one.value
                for one in node.keywords
                if one.arg in keywords.get(ast.unparse(node.func), ())
            ]
            parts = [
                part for text in given for part in ast.walk(text) if isinstance(part, ast.Constant)
            ]
            if any(
                isinstance(part.value, str) and re.search(r"[a-z]{2}", part.value) for part in parts
            ):
                return True
    return False


def words_abstentions(nodes: Nodes) -> bool:
    """Makes an abstention of the doctor, or gives a circumstance of a message words in code."""
    for node in nodes:
        if isinstance(node, ast.Call):
            place, given = ast.unparse(node.func), node.args[1:]
            if place == "Abstained" and any(one.arg == "missing" for one in node.keywords):
                return True
        elif isinstance(node, ast.Assign):
            place, given = ast.unparse(node.targets[0]), [node.value]
        else:
            continue
        if re.match(r"(?:scene\.)?facts(?:\.setdefault$|\[)", place) and any(
            isinstance(part, ast.Constant)
            and isinstance(part.value, str)
            and re.search(r"[a-z] [a-z]", part.value)
            for value in given
            for part in ast.walk(value)
        ):
            return True
    return False


def reads_numbers(nodes: Nodes) -> bool:
    """Takes a value of any type for a number unless it is True or False."""
    for node in nodes:
        if isinstance(node, ast.BoolOp):
            types = {
                ast.unparse(one.args[1])
                for one in ast.walk(node)
                if isinstance(one, ast.Call) and ast.unparse(one.func) == "isinstance"
            }
            if {"bool", "(int, float)"} <= types:
                return True
    return False


def reads_links(nodes: Nodes) -> bool:
    """Looks into the words of a link, or writes them, for when it is tried again."""
    return any(
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch("(; )?trying again( in )?", node.value)
        for node in nodes
    )


def writes_ratios(nodes: Nodes) -> bool:
    """Writes a ratio with the interval behind it."""
    return any(isinstance(node, ast.Constant) and str(node.value).endswith("× [") for node in nodes)


def steps_of_time(nodes: Nodes) -> bool:
    """Lists round times, as the steps of an axis."""
    return any(
        isinstance(value, ast.Tuple)
        and {300, 900, 43200}
        <= {one.value for one in ast.walk(value) if isinstance(one, ast.Constant)}
        for _, value in assigned(nodes)
    )


def writes_plurals(nodes: Nodes) -> bool:
    """Adds an "s" to a word for more than one thing."""
    for node in nodes:
        if isinstance(node, ast.FormattedValue):
            value = node.value
            ends: list[ast.expr] = []
            if isinstance(value, ast.IfExp):
                ends = [value.body, value.orelse]
            elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
                ends = [value.left]
            if any(isinstance(end, ast.Constant) and end.value == "s" for end in ends):
                return True
    return False


def writes_moments(nodes: Nodes) -> bool:
    """Writes a moment that somebody else gave in local time."""
    return any(
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("strftime")
        and re.search("localtime|fromtimestamp", ast.unparse(node))
        for node in nodes
    )


def cuts_text(nodes: Nodes) -> bool:
    """Cuts a text to a number of characters and sets an ellipsis behind it."""
    return any(
        isinstance(node, ast.IfExp)
        and re.search(r"\[:.*\] \+ '…'", ast.unparse(node.orelse)) is not None
        for node in nodes
    )


def tells_whose_file(nodes: Nodes) -> bool:
    """Tells by its path whether a source file is the user's, a package's, torch's or Python's."""
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    return any(
        re.search(r"^/?(site|dist)-packages/?$|\)-packages|^/torch/$|/lib/python3|<frozen", text)
        for text in texts
        if isinstance(text, str) and len(text.split()) == 1
    )


# Each entry says why it stands. The probe's have one reason: only the wire goes into a trainer with
# it.
ALLOWED: list[tuple[Callable[[Nodes], bool], tuple[str, ...], dict[str, int]]] = [
    (defines_units, ("text/units.py",), {}),
    (
        writes_bytes,
        ("text/units.py",),
        {
            # the name of a card, with the size as it was typed: 24, not 24.0
            "cli/commands/predict/card.py": 1,
            "probe/": 2,
        },
    ),
    (
        writes_durations,
        ("text/units.py",),
        {
            # these run with the wire only: inside a trainer, or on a host that has no viewer
            "attach/": 1,
            "collect/": 1,
            "probe/": 4,
            "process/child.py": 1,  # the agent starts processes with it
            "tui/runs/tuning.py": 1,  # an argument: 300s
        },
    ),
    (counts_cells, ("text/width.py",), {"tui/cells.py": 1}),  # compares them with Textual's
    (defines_lines, ("text/styled.py",), {}),
    (
        starts_processes,
        ("process/child.py", "process/line_child.py", "process/async_child.py"),
        {
            "lab/": 1,  # a training: asked to end first, its records read as they come
            "probe/": 1,  # starts the doctor in a process that dies
            "tui/runs/demo.py": 1,  # a training: asked to end first, its output read as it is drawn
            # a command that is given a line, and whose output nobody reads
            "tui/shell/alerts.py": 1,
        },
    ),
    (
        kills_groups,
        ("process/child.py",),
        {"lab/": 2, "tui/runs/demo.py": 1},  # trainings: asked to end first
    ),
    (shortens_home, ("paths.py",), {}),
    (
        takes_middle,
        ("model/ranks.py",),
        {
            "doctor/messages/growth.py": 1,  # the middle of a time
            "probe/": 3,
            "tui/charts/bins.py": 1,  # asked with each drawing
        },
    ),
    (
        replaces_files,
        ("process/atomic_file.py",),
        {
            "attach/hook_directory.py": 1,  # a whole folder
            "probe/": 4,
            "store/blob_receiver.py": 1,  # fills the file as it comes
        },
    ),
    (
        parses_stat,
        ("process/procfs.py",),
        {
            "attach/inject_worker.py": 1,  # is run as a file alone
            "probe/": 1,
        },
    ),
    (defines_exit_codes, ("exit_status.py",), {}),
    (looks_for_folders, ("paths.py",), {"probe/": 1}),
    (
        reads_machine,
        ("process/procfs.py",),
        {
            "collect/host.py": 1,
            "probe/": 2,
        },  # the host's reader takes all of the file, below a root
    ),
    (writes_ranges, ("text/ranges.py",), {}),
    (
        reads_numbers,
        ("text/numbers.py",),
        {
            "agent/": 1,  # runs on a host that has only the wire
            "cli/output.py": 1,  # readings, which the wire has checked
            "collect/": 1,  # as the agent
            "predict/tracing/value_statistics.py": 1,  # a scalar of torch keeps its type
            "probe/": 4,
            # whole numbers are written without a point
            "tui/lab/run_text.py": 1,
            "tui/memory/summary.py": 1,
            "tui/overview/detail_screen.py": 1,
        },
    ),
    (reads_links, ("store/view.py",), {}),
    (writes_ratios, ("lab/intervals.py",), {}),
    (cuts_text, ("wire/clean.py",), {"attach/attach_options.py": 1}),  # has only the library
    (steps_of_time, ("text/units.py",), {"tui/log/activity.py": 1}),  # the length of a column
    (writes_moments, ("text/clock.py",), {}),
    (
        tells_whose_file,
        ("wire/code_owner.py",),
        {
            # names of folders that are looked for or left out
            "agent/environment_torch.py": 1,
            "attach/left_files.py": 1,
            "doctor/dead/find.py": 1,
            "doctor/script/files.py": 1,
            "tui/shared/stack_text.py": 1,  # shortens a path
        },
    ),
    (
        writes_plurals,
        ("text/units.py", "text/ranges.py"),
        {
            "check/text.py": 1,  # a word that has no plural among them
            "cli/commands/lab/runs.py": 1,  # followed by the names of the runs
            "report/tuning.py": 1,  # of a number that may be unknown
        },
    ),
    (words_findings, (), {}),  # the words are in doctor/findings and doctor/pitfalls.toml
    # these read the rows with the words
    (words_abstentions, ("doctor/wordings.py", "doctor/messages/tables.py"), {}),
]


@pytest.mark.parametrize(
    ("is_second", "homes", "allowed"), ALLOWED, ids=[one.__name__ for one, _, _ in ALLOWED]
)
def test_an_idea_has_one_home(is_second, homes, allowed):
    found = [name for name, nodes in modules().items() if name not in homes and is_second(nodes)]
    places = {
        place: [name for name in found if name == place or name.startswith(place)]
        for place in allowed
    }
    assert [name for name in found if not any(name in files for files in places.values())] == [], (
        "use the one home"
    )
    assert {place: len(files) for place, files in places.items()} == allowed, places


def test_what_is_looked_for_is_found():
    """Each search sees what it is for."""
    second = {
        defines_units: "_GIB = 1 << 30",
        writes_bytes: 'text = f"{size / 2**30:.1f} GiB"',
        writes_durations: 'text = f"no step for {seconds:.0f} s, {minutes // 60} min"',
        counts_cells: "cells = unicodedata.east_asian_width(char)",
        defines_lines: "Line = list[tuple[str, str]]",
        starts_processes: "child = subprocess.Popen(words)",
        kills_groups: "os.killpg(child.pid, signal.SIGKILL)",
        shortens_home: 'text = str(path).replace(str(Path.home()), "~")',
        takes_middle: "usual = sorted(values)[len(values) // 2]",
        replaces_files: "os.replace(beside, path)",
        parses_stat: 'fields = content.rpartition(b")")[2].split()',
        defines_exit_codes: "EXIT_OK, EXIT_USAGE = 0, 64",
        looks_for_folders: 'os.environ.get("XDG_STATE_HOME")',
        reads_machine: 'boot = open("/proc/sys/kernel/random/boot_id").read()',
        writes_ranges: 'text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)',
        reads_numbers: "ok = isinstance(one, (int, float)) and not isinstance(one, bool)",
        reads_links: 'lost = "trying again" in host.link.text',
        cuts_text: "short = line if len(line) <= most else line[: most - 1] + '…'",
        writes_ratios: 'text = f"{ratio:.2f} × [{low:.2f}, {high:.2f}]"',
        steps_of_time: "STEPS = (60, 300, 900, 3600, 43200)",
        writes_moments: "at = time.strftime('%H:%M', time.localtime(wall))",
        writes_plurals: """text = f"{count} run{'s' * (count != 1)}" """,
        tells_whose_file: 'own = "site-packages" not in frame.filename',
        words_findings: 'fix = Fix(title=f"Free {size}", command=command)',
        words_abstentions: 'scene.facts["cell"] = f"cell {number} of a notebook"',
    }
    assert {is_second for is_second, _, _ in ALLOWED} == set(second)
    assert words_abstentions(nodes_of("yield Abstained(pitfall=name, missing=why)"))
    for is_second, text in second.items():
        assert is_second(nodes_of(text)), text
        assert not is_second(
            nodes_of('from ..text.units import GIB\n\ntext = f"{bytes_text(size)} free"')
        )
