"""The command line: one table of verbs, imported only when asked for; exit codes.

Each verb is a module in ``gpuscope/cli/commands`` with ``add_arguments(parser)`` and ``run(args) ->
int``. ``gpuscope run`` is the exception: it gets its arguments unparsed, because most of them
belong to the trainer.
"""

from __future__ import annotations

import argparse
import codecs
import errno
import io
import os
import re
import sys
from importlib import import_module
from typing import Any, Callable, Dict, List, NoReturn, Optional, Tuple

from .. import __version__
from ..errors import UserError
from ..exit_status import ExitStatus

VERBS = {
    "doctor": "check the environment, trainers, a log or traceback, a script, a snapshot or a "
    "recording",
    "devices": "list the GPUs of this machine with their readings, once",
    "ps": "list GPU processes and trainers, grouped by job",
    "attach": "open the TUI on a running trainer or on other hosts (PID, user@host, slurm:JOB, "
    "k8s:NS/POD), or list what can be attached to",
    "run": "start a trainer with gpuscope's probe in it, without a code change",
    "enable": "install the probe into a Python environment, for every PyTorch training there",
    "disable": "remove the probe from a Python environment",
    "wait": "wait until a process ends or stalls, its loss is NaN, or GPUs have enough free "
    "memory; the exit code says which",
    "snapshot": "read a snapshot of torch's CUDA memory, compare two, or take one",
    "why": "show where a training's time goes, and what would make it faster",
    "lab": "train a demo model or your own with any settings, in the TUI or headless",
    "tune": "find the fastest or cheapest settings of a training that fit, and prove them",
    "predict": "predict a model's peak memory without a GPU: whether it fits, the largest batch, "
    "what would help",
    "check": "check trainings against their memory budgets in CI, and name the change that broke "
    "one",
    "record": "record a session to a file",
    "replay": "play a recording in the TUI",
    "report": "turn a recording, a snapshot or a result into one HTML page, to send or print",
    "export": "serve this machine's Prometheus metrics, on a port or in a file",
    "completion": "print the completion script for bash, zsh or fish",
}
SUBVERBS = {
    "lab": {
        "sweep": "run every combination of some settings, interleaved, and print the table",
        "claims": "measure common claims about GPU training on this machine",
        "runs": "the ledger of runs: list, compare, export, remove",
        "pitfall": "run a script with a known mistake in it, or the same script with the fix",
    }
}
"""Subcommands, each in ``commands/VERB/WORD.py``."""
FOLDERS = frozenset(("attach", "devices", "doctor", "lab", "predict", "ps", "snapshot"))
"""Verbs that consist of several files and begin in ``commands/VERB/verb.py``.

Every other verb is ``commands/VERB.py``.
"""
NEEDS_PYTHON = (3, 10)
"""The oldest Python for everything except the probe and ``gpuscope run``.

Those two also work inside older training environments.
"""


class Parser(argparse.ArgumentParser):
    """An argument parser with gpuscope's exit code for wrong usage and a line on what to do next.

    Its help ends with ``verbs``, examples and exit codes.
    """

    def __init__(self, *args: Any, verbs: Optional[Dict[str, str]] = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._verbs = verbs or {}
        self.typed: List[str] = []

    def format_help(self) -> str:
        """Return the help with examples and exit codes, whose tables are loaded only here."""
        from .verb_help import ending, short_usage

        # argparse would list every option, which are 25 lines for some verbs
        self.usage = self.usage or short_usage(self.prog, self._actions, bool(self._verbs))
        return super().format_help() + ending(self.prog, self._verbs)

    def error(self, message: str) -> NoReturn:
        from ..wire.clean import clean
        from .unknown_verb import nearest_word, verb_after_options
        from .verb_help import first_example

        suggestion = nearest_word(self, message)
        suggestion = suggestion or verb_after_options(self.prog, message, VERBS, self.typed)
        if suggestion:
            message += f". Did you mean {suggestion}?"
        # the list of all options would only push the answer off the screen
        example = "" if suggestion else first_example(self.prog)
        self.exit(
            ExitStatus.USAGE,
            f"{self.prog}: error: {clean(message)}\n{example}See: {self.prog} --help\n",
        )


def sentence(text: str) -> str:
    """Return a verb's line in the list of verbs as a sentence."""
    return f"{text[:1].upper()}{text[1:]}."


def parser(verb: str = "", word: str = "") -> Parser:
    """Return the parser of a verb or of its subcommand, with all options.

    Without a verb it is the parser of the TUI, whose help lists the verbs.
    """
    if not verb:
        summary = (
            "See inside PyTorch trainings from the terminal. Without a verb: the live TUI on this "
            "machine."
        )
        used = Parser(prog="gpuscope", description=summary, verbs=VERBS)
        used.usage = "gpuscope [OPTIONS]\n       gpuscope VERB [OPTIONS] [TARGET]"
        used.add_argument("--version", action="version", version="gpuscope " + __version__)
    else:
        second = SUBVERBS.get(verb, {})
        used = Parser(
            prog=" ".join(("gpuscope", verb, word)).rstrip(),
            description=sentence(second[word] if word else VERBS[verb]),
            verbs={} if word else {f"{verb} {word}": text for word, text in second.items()},
        )
    import_module(module_of(verb or "tui", word)).add_arguments(used)
    return used


def main(argv: Optional[List[str]] = None) -> int:
    """Run one command and return its exit code.

    0: fine. 1: warnings. 2: problems. 3: it could not be checked. 64: wrong usage.
    """
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["help"]:
        words = [*(word for word in words if word != "help" and word[:1] != "-"), "--help"]
    verb = words[0] if words and not words[0].startswith("-") else ""
    if verb == "run":
        return int(import_module("gpuscope.cli.commands.run").main(words[1:]))
    if verb and verb not in VERBS:
        from .unknown_verb import refusal

        return tell(refusal(words, VERBS, SUBVERBS), "gpuscope")
    # Works with every Python, and without loading the options of the screen.
    if words[:1] == ["--version"]:
        print("gpuscope " + __version__)
        return ExitStatus.OK
    if sys.version_info < NEEDS_PYTHON:
        sys.stderr.write(
            "gpuscope: the viewer needs Python 3.10 or newer, this is "
            f"{sys.version_info[0]}.{sys.version_info[1]}.\n"
            "Available here: gpuscope.watch() in a script, and `gpuscope run`.\n"
        )
        return ExitStatus.UNCHECKED
    if not verb:
        return _call("", "", words)
    second = SUBVERBS.get(verb, {})
    if words[1:2] and words[1] in second:
        return _call(verb, words[1], words[2:])
    if second and words[1:2] and not words[1].startswith("-"):
        from .unknown_verb import refusal_of_second

        return tell(refusal_of_second(verb, words[1:], second), f"gpuscope {verb}")
    return _call(verb, "", words[1:])


def module_of(verb: str, word: str = "") -> str:
    """Return the module of a verb or of one of its subcommands.

    The module has ``add_arguments(parser)`` and ``run(args)``.
    """
    inside = word or ("verb" if verb in FOLDERS else "")
    return f"gpuscope.cli.commands.{verb}.{inside}" if inside else f"gpuscope.cli.commands.{verb}"


def _call(verb: str, word: str, words: List[str]) -> int:
    used = parser(verb, word)
    used.typed = words
    run = import_module(module_of(verb or "tui", word)).run
    return perform(run, used.parse_args(words), used.prog)


def perform(
    run: Callable[[argparse.Namespace], int], args: argparse.Namespace, command: str
) -> int:
    """Run a command and return its exit code.

    A UserError of any command is printed here.
    """
    try:
        return int(run(args))
    except UserError as error:
        return tell(error, command)


def tell(error: UserError, command: str) -> ExitStatus:
    """Print on standard error what a command cannot do, and return its exit code."""
    from ..wire.clean import clean_lines

    print(f"{command}: {clean_lines(str(error))}", file=sys.stderr)
    if error.exit_status == ExitStatus.USAGE and error.code != "missing":
        print(f"See: {command} --help", file=sys.stderr)
    return error.exit_status


def entry() -> NoReturn:
    """Run gpuscope as a console script.

    A reader that has gone away (``| head``), a full disk and Ctrl-C end it without a traceback.
    """
    _usable_streams()
    try:
        code = int(main())
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = ExitStatus.INTERRUPTED
    except BrokenPipeError:
        _silence()
        code = ExitStatus.NO_READER
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _silence()
        sys.stderr.write(f"gpuscope: cannot write the output: {error.strerror}\n")
        code = ExitStatus.UNCHECKED
    _leave(code)


_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def _usable_streams() -> None:
    """Make the standard streams usable.

    Streams that were closed (``>&-``) are connected to the null device, which child processes do
    not inherit, so ``gpuscope run`` leaves them closed for the trainer. A character that the
    encoding lacks becomes a likeness of it, or "?". Control characters become visible.
    """
    codecs.register_error("gpuscope-likeness", _likeness)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
            continue
        if mode == "w" and stream.errors in ("strict", "surrogateescape"):  # the latter: LC_ALL=C
            stream.reconfigure(errors="gpuscope-likeness")
        if name == "stderr" or (name == "stdout" and stream.isatty()):
            setattr(sys, name, Printer(stream))


_LIKENESS = {
    **dict.fromkeys("–—−", "-"),
    **dict.fromkeys("·•", "."),
    **dict.fromkeys("○●", "o"),
    "…": "~",
    "±": "+-",
    "×": "x",
    "≈": "~",
    "≤": "<=",
    "≥": ">=",
    "→": ">",
    "µ": "u",
    "◆": "*",
    "▲": "!",
    "✓": "+",
}
"""What stands for our own characters where the encoding of the output has none of them."""


def _likeness(error: UnicodeError) -> Tuple[str, int]:
    """Handle an error of a codec: "?" says nothing, and in a table it reads as unknown."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    return "".join(_LIKENESS.get(one, "?") for one in wrong), error.end


class Printer(io.TextIOWrapper):
    """A stream that makes foreign control sequences visible and passes only gpuscope's own.

    Its own are colours on standard output, and the updated line on standard error. Messages repeat
    words from the command line, a file or another host, and anyone may have put terminal control
    sequences into the name of a file. Every message passes here, whoever prints it.
    """

    def __init__(self, stream: io.TextIOWrapper) -> None:
        super().__init__(
            stream.buffer,
            stream.encoding,
            stream.errors,
            line_buffering=stream.line_buffering or stream is sys.stderr,
        )
        self._stream = stream  # keep a reference: if it were collected, the buffer would be closed
        self._own = _PROGRESS if stream is sys.stderr else _COLOURS

    def write(self, text: str) -> int:
        if not (text.isascii() and text.isprintable()):
            from ..wire.clean import clean_lines

            pieces = self._own.split(text)
            pieces[::2] = [clean_lines(piece) for piece in pieces[::2]]
            super().write("".join(pieces))
        else:
            super().write(text)
        return len(text)


_PROGRESS = re.compile(r"(\A\r|\r\Z|\x1b\[K\Z)")
_COLOURS = re.compile(r"(\x1b\[[0-9;]*m)")


def _silence() -> None:
    """Discard what is still in the buffer, so that the flush at exit does not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(code: int) -> NoReturn:
    """Exit at once where a thread may still be inside a driver call.

    The thread must neither return into an interpreter that is shutting down nor keep the process
    alive.
    """
    threading = sys.modules.get("threading")
    others = (
        [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        if threading
        else []
    )
    if not others or not all(thread.daemon for thread in others):
        sys.exit(code)
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    os._exit(code)
