"""Write the manual page gpuscope(1) from the parsers of all verbs.

``python -m gpuscope.cli.manual > docs/gpuscope.1`` regenerates it; the wheel installs that file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

from .. import __version__
from . import remote
from .command_tree import Command, Word, commands
from .verb_help import EXAMPLES, RUN_TEXT, exit_codes

NAME = "see inside PyTorch trainings from the terminal"
_SAME_AS_LAB = ("lab", "sweep")
"""Its settings are those of the lab and are described there."""


def page() -> str:
    """Return the page in the language of man."""
    first, *rest = commands()
    lines = [
        '.\\" Made by: python -m gpuscope.cli.manual > docs/gpuscope.1',
        f'.TH GPUSCOPE 1 "" "gpuscope {__version__}" "User Commands"',
        ".SH NAME",
        f"gpuscope \\- {NAME}",
        ".SH SYNOPSIS",
        ".nf",
        "\\fBgpuscope\\fR [\\fIOPTIONS\\fR]",
        "\\fBgpuscope\\fR \\fIVERB\\fR [\\fIOPTIONS\\fR] [\\fITARGET\\fR]",
        ".fi",
        ".SH DESCRIPTION",
        *_paragraphs(first.description),
        ".PP",
        "The verbs:",
    ]
    for verb, summary in first.below:
        lines += [".TP", f"\\fB{_safe(verb)}\\fR", *_paragraphs(summary)]
    lines += [".SH OPTIONS", *_options(first), *_ending(first)]
    lines.append(".SH VERBS")
    for command in rest:
        lines += _section(command)
    lines += [
        ".SH SEE ALSO",
        ".BR nvidia\\-smi (1)",
        ".PP",
        "\\fBgpuscope help\\fR \\fIVERB\\fR shows the same for one verb.",
    ]
    return "\n".join(lines) + "\n"


def _section(command: Command) -> Iterator[str]:
    """Yield the lines of one command; an action below a second word gets a smaller heading."""
    words = " ".join(("gpuscope", *command.words))
    given = " ".join(
        f"[{one.value}]" if one.may_lack_value else one.value for one in command.arguments
    )
    yield f".SS {_safe(words)}"
    usage = f"\\fB{_safe(words)}\\fR"
    usage += " [\\fIOPTIONS\\fR]" if _listed_options(command) else ""
    usage += " \\fIACTION\\fR" if command.below and command.words == ("lab", "runs") else ""
    yield usage + (f" \\fI{_safe(given)}\\fR" if given else "")
    yield ".PP"
    yield from _paragraphs(command.description)
    for argument in command.arguments:
        if argument.help:
            yield ".TP"
            yield f"\\fI{_safe(argument.value)}\\fR"
            yield from _paragraphs(argument.help)
    yield from _options(command)
    if command.epilog:
        yield ".PP"
        yield from _paragraphs(command.epilog)
    yield from _ending(command)


def _listed_options(command: Command) -> list[tuple[str, tuple[Word, ...]]]:
    """Return the options under their headings, without --help and those that other pages list."""
    listed = []
    for title, options in command.groups:
        if command.words == _SAME_AS_LAB and title == "settings":
            continue
        left = tuple(
            one
            for one in options
            if "--help" not in one.names
            and (command.words == ("attach",) or not remote.NAMES & {*one.names})
        )
        if left:
            listed.append((title, left))
    return listed


def _options(command: Command) -> Iterator[str]:
    for title, options in _listed_options(command):
        if title != "options":
            yield ".PP"
            yield f"{_safe(title[:1].upper() + title[1:])}:"
        for option in options:
            yield ".TP"
            names = ", ".join(f"\\fB{_safe(name)}\\fR" for name in option.names)
            value = f"[{option.value}]" if option.may_lack_value else option.value
            yield names + (f" \\fI{_safe(value)}\\fR" if option.value else "")
            text = option.help
            if option.choices and not any(one in text for one in option.choices):
                text += f": {', '.join(option.choices)}"
            yield from _paragraphs(text)
    if command.words == _SAME_AS_LAB:
        yield ".PP"
        yield "And the settings of \\fBgpuscope lab\\fR."
    if command.words != ("attach",) and any(
        remote.NAMES & {*option.names} for option in command.options
    ):
        yield ".PP"
        yield from _paragraphs(f"For another host or container: {remote.WAYS}.")


def _ending(command: Command) -> Iterator[str]:
    """Yield the examples and the exit codes of a command that has such."""
    words = " ".join(command.words)
    if words not in EXAMPLES:
        return
    if command.words:
        yield from (".PP", "Examples:")
    else:
        yield ".SH EXAMPLES"
    for example, does in EXAMPLES[words]:
        typed = " ".join(filter(None, ("gpuscope", words, example)))
        yield from (".TP", f"\\fB{_safe(typed)}\\fR", *_paragraphs(does))
    if words == "run":
        yield from (".PP", *_paragraphs(RUN_TEXT))
        return
    if command.words:
        yield from (".PP", "Exit codes:")
    else:
        yield ".SH EXIT STATUS"
    for code, text in exit_codes(words).items():
        yield from (".TP", f"\\fB{int(code)}\\fR", *_paragraphs(text))


def _paragraphs(text: str) -> Iterable[str]:
    """Return plain text, of which no line is a request and no word a hyphen that breaks."""
    return [_safe(line.strip()) for line in text.splitlines() if line.strip()]


def _safe(text: str) -> str:
    made = text.replace("…", "...").replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    made = made.replace("'", "\\(aq").replace("~", "\\(ti").replace("^", "\\(ha")
    return re.sub(r"^\.", r"\\&.", made)


if __name__ == "__main__":
    sys.stdout.write(page())
