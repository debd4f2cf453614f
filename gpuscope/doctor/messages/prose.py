"""Tell documentation, settings and plain prose from a log.

They mention errors without having had one. A text that holds a real traceback or a line of error
output is taken for a log in any case, because people paste logs into documents.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from .text import split_prefix

PROSE = "prose"
_BY_NAME = {
    ".md": "Markdown",
    ".markdown": "Markdown",
    ".rst": "reStructuredText",
    ".adoc": "AsciiDoc",
    ".tex": "LaTeX",
    ".html": "HTML",
    ".htm": "HTML",
    ".toml": "a settings file",
    ".yaml": "a settings file",
    ".yml": "a settings file",
    ".ini": "a settings file",
    ".cfg": "a settings file",
    ".conf": "a settings file",
}
_ERROR_OUTPUT = re.compile(
    r"""^\W{0,8}Traceback\ \(most\ recent\ call\ last\)
    | ^\s*(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception|Interrupt)(?:\Z|:\s)
    | ^\[?(?:ERROR|FATAL|CRITICAL)\b | ^[\[\d][^a-z]*\b(?:ERROR|FATAL|CRITICAL)\b
    | \bTHCudaCheck\ FAIL | ^\[[EF]\d | ^[EF]\d{4}\s | NVRM:\ | \bXid\ \(
    | NCCL\ WARN | ^(?:slurmstepd|srun):\ error
    | \bCUDA\ error:\ | \bout\ of\ memory\.\ Tried\ to\ allocate
    | ^\s*(?:Killed|Segmentation\ fault|Bus\ error|Aborted)(?:\Z|\ \(core)
    | \bexitcode\s*:\s*-?[1-9] | \bSignal\ \d+\ \(SIG | died\ with\ <Signals
    """,
    re.X,
)
_OTHER_OUTPUT = re.compile(
    r'^(?:\S+:\d+: )?\w*Warning:(?:\Z|\s)|^\s*File "[^"]+", line \d|\berror ?[=:] ?-?\d'
)
"""Output of a program that need not be an error's: a warning, a frame, a number called error."""
_MARKDOWN = (
    re.compile(r"^#{1,6} \S"),
    re.compile(r"^\s*```"),
    re.compile(r"\]\((?:https?:|#|[\w./-]+\))"),
    re.compile(r"^\s*(?:[-*]|\d+\.) .*(?:\*\*|`)"),
)
_SECTION = re.compile(r"^\[{1,2}[\w.\" -]+\]{1,2}\s*(?:#.*)?$")
_SETTING = re.compile(r"^[\w.\"-]+\s*=\s*\S")
_SENTENCE = re.compile(r"^\s*[A-Za-z(\"'“](?![\w.-]{0,30}:)")
"""The beginning of a line of prose. A label before a colon is that of a program, as ``srun:``."""
_READING = re.compile(r"\b(?:step|epoch|iter|loss)\b\W{0,3}\d|\d\d:\d\d:\d\d|%\||\bit/s\b", re.I)
"""A step, a loss, a time or a progress bar: one of them makes a text without markup a log."""
_FULL_STOP = re.compile(r"[.!?][)\"'”]?(?:\s|\Z)")
LEAST_LINES = 3
LEAST_SENTENCES = 4
LEAST_WORDS = 8
PROSE_SHARE = 0.6
STOPS_SHARE = 0.1
"""Of the lines of prose at least this share has the end of a sentence; messages seldom have."""
SETTINGS_SHARE = 0.9
MARKDOWN_SHARE = 0.05


def kind_of_document(lines: Sequence[str], name: str = "") -> str:
    """Return what a text is that is no log, in words; nothing where it may be one.

    ``name`` is that of its file, whose suffix counts. Without one, of a text that was piped or
    pasted, plain sentences may be about a failure: only markup and settings tell it then.
    """
    filled = [line for line in lines if line.strip()]
    kind = _BY_NAME.get(PurePath(name).suffix.lower()) or _kind_by_content(filled)
    if kind and any(is_error_output(line) or _OTHER_OUTPUT.search(line) for line in filled):
        return ""
    return "" if kind == PROSE and not name else kind


def is_error_output(line: str) -> bool:
    """Return whether a line has the form of an error that a program or a driver prints."""
    return _ERROR_OUTPUT.search(line) is not None or (
        _ERROR_OUTPUT.search(split_prefix(line)[0]) is not None
    )


def _kind_by_content(filled: Sequence[str]) -> str:
    """Return what the lines of a text read as, which are not empty."""
    if len(filled) < LEAST_LINES:
        return ""
    marked = [sum(bool(sign.search(line)) for line in filled) for sign in _MARKDOWN]
    least = max(LEAST_LINES, MARKDOWN_SHARE * len(filled))
    if sum(map(bool, marked)) > 1 and sum(marked) >= least:
        return "Markdown"
    plain = [line for line in filled if not line.lstrip().startswith(("#", ";"))]
    sections = sum(bool(_SECTION.match(line)) for line in plain)
    settings = sum(bool(_SETTING.match(line)) for line in plain)
    if sections and settings and sections + settings >= SETTINGS_SHARE * len(plain):
        return "a settings file"
    if any(map(_READING.search, filled)):
        return ""
    sentences = [
        line for line in filled if len(line.split()) >= LEAST_WORDS and _SENTENCE.match(line)
    ]
    stops = sum(_FULL_STOP.search(line) is not None for line in sentences)
    enough = len(sentences) >= max(LEAST_SENTENCES, PROSE_SHARE * len(filled))
    return PROSE if enough and stops >= STOPS_SHARE * len(sentences) else ""
