"""``gpuscope run`` becomes the same command, with the probe's hook before PYTHONPATH.

It ends in ``execvpe``, so the process stays the same: pid, exit code, signals and terminal are the
trainer's own, and no process of gpuscope stays with it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from importlib.util import find_spec
from typing import Dict, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

from ..errors import UsageError, UserError
from ..missing_file import MissingScript, is_missing_file
from ..probe import rendezvous
from ..probe.rendezvous import RendezvousError
from ..wire.clean import clean
from ..wire.files import NotAFile, open_regular
from .hook_directory import prepare
from .on_call import prepare as on_call_settings

DOCTOR = "GPUSCOPE_DOCTOR"
ASK_SECONDS = 5.0
"""How long a Python may take to say whether it has torch."""
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*[a-z]?")
_WITH_VALUE = frozenset(("-X", "-W", "--check-hash-based-pycs"))


class CannotRun(UsageError):
    """The command cannot be run as given. The text says why."""

    def __init__(self, what: str, next: str = "") -> None:  # noqa: A002
        # Both repeat words that were typed, which may contain line ends.
        super().__init__(clean(what), next=clean(next))


def command(words: List[str], env: Mapping[str, str]) -> List[str]:
    """Return the argv to execute, whose first word is the path of a program.

    ``words`` is what follows ``gpuscope run``. ``-- CMD …`` is run as it is, found in PATH. ``-m
    MODULE …`` and ``SCRIPT …`` are run by the Python of the user's environment, and so is ``python
    SCRIPT …``, which means the same. A path to a Python is used unchanged. If the first word is
    another program and not a file, it is a command too. Raises :class:`CannotRun`, or
    :class:`~gpuscope.missing_file.MissingScript`.
    """
    if not words:
        raise CannotRun("name what to run: a script, -m MODULE, or -- COMMAND")
    if words[0] == "--":
        if len(words) == 1:
            raise CannotRun("no command after --")
        return [_program(words[1], env), *words[2:]]
    if words[0] == "-m":
        if len(words) == 1:
            raise CannotRun("no module after -m")
        return [_python_with_torch(env), *words]
    if words[0].startswith("-"):
        raise CannotRun(
            f"no such option: {words[0]}. Put Python's options after --:  gpuscope run -- python "
            f"{words[0]}"
        )
    if _is_path_of_python(words[0]):
        return list(words)
    if os.path.exists(words[0]):
        _check_script(words[0])
        return [_python_with_torch(env), *words]
    if words[0] in ("python", "python3"):
        return [_python_with_torch(env, (words[0], "python3", "python")), *words[1:]]
    try:
        return [_program(words[0], env), *words[1:]]
    except CannotRun:
        if is_missing_file(words[0]):
            raise MissingScript(words[0]) from None
        raise CannotRun(
            f"no such script in {os.getcwd()}, and no such program on PATH: {words[0]}",
            f"cd to its folder, or give its path: gpuscope run FOLDER/{os.path.basename(words[0])}",
        ) from None


def python(env: Mapping[str, str], names: Tuple[str, ...] = ("python3", "python")) -> str:
    """Return the Python of $VIRTUAL_ENV, else of $CONDA_PREFIX, else of PATH.

    It runs the trainer, and need not be the Python that runs gpuscope.
    """
    found = _environments_python(env) or _python_on_path(env, names)
    if found:
        return found
    raise CannotRun(
        "no python in $VIRTUAL_ENV, $CONDA_PREFIX or PATH. Name it:  gpuscope run -- "
        "/path/to/python SCRIPT"
    )


def _python_with_torch(
    env: Mapping[str, str], names: Tuple[str, ...] = ("python3", "python")
) -> str:
    """Return what :func:`python` does, or gpuscope's own Python.

    It is that one where no environment is active and only gpuscope's own has torch.
    """
    own = sys.executable
    if own and not _environments_python(env):
        found = _python_on_path(env, names)
        if found != own and _has_torch_itself() and not _has_torch(found):
            return own
    return python(env, names)


def _python_on_path(env: Mapping[str, str], names: Tuple[str, ...]) -> Optional[str]:
    found = (shutil.which(name, path=env.get("PATH")) for name in names)
    return next(filter(None, found), None)


def _has_torch_itself() -> bool:
    """Return whether gpuscope's own Python finds torch."""
    mine = find_spec("torch")
    return mine is not None and bool(mine.origin)


def _has_torch(program: Optional[str]) -> bool:
    """Return whether a Python finds torch, which it does not import."""
    if program is None:
        return False
    from ..process import child  # few runs need it

    question = "import importlib.util as u; raise SystemExit(not u.find_spec('torch'))"
    try:
        return not child.ask([program, "-c", question], ASK_SECONDS).failure
    except OSError:
        return False


def _environments_python(env: Mapping[str, str]) -> Optional[str]:
    """Return the Python of $VIRTUAL_ENV or $CONDA_PREFIX, or None; it need not be in PATH."""
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if env.get(variable):
            candidate = os.path.join(env[variable], "bin", "python")
            if os.access(candidate, os.X_OK):
                return candidate
    return None


def _is_path_of_python(word: str) -> bool:
    """Tell whether a word is the path of a Python, which is then used unchanged."""
    return (
        os.sep in word
        and _PYTHON.fullmatch(os.path.basename(word)) is not None
        and os.path.isfile(word)
        and os.access(word, os.X_OK)
    )


def hiding_option(argv: List[str]) -> Optional[str]:
    """Return the option of python in ``argv`` that prevents every sitecustomize, or None.

    These are -I, -E (which ignores PYTHONPATH) and -S (without site).
    """
    if not _PYTHON.fullmatch(os.path.basename(argv[0])):
        return None
    words = iter(argv[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word.startswith("--"):
            continue
        elif not word.startswith("-") or word == "-":
            return None
        else:
            for letter in word[1:]:
                if letter in "IES":
                    return "-" + letter
                # the rest of the word is the option's value, and after m or c no options follow
                if letter in "mcXW":
                    break
            if re.fullmatch("-[a-zA-Z]*[mc].*", word) and not word.startswith(("-X", "-W")):
                return None
    return None


def environment(env: Mapping[str, str], hook: str) -> Dict[str, str]:
    """Return ``env`` with the hook's directory in front of PYTHONPATH, once."""
    out = dict(env)
    rest = (
        [entry for entry in env["PYTHONPATH"].split(os.pathsep) if entry != hook]
        if env.get("PYTHONPATH")
        else []
    )
    out["PYTHONPATH"] = os.pathsep.join([hook, *rest])
    return out


class RunOptions(NamedTuple):
    """Our own options: the environment that carries them to the probe, and what plan() does.

    ``on_call`` is the folder for :mod:`on_call`, "" for its own choice of one, or None.
    """

    environment: Dict[str, str]
    on_call: Optional[str]


def options(
    words: List[str], env: Mapping[str, str], on_call: bool = False
) -> Tuple[List[str], RunOptions]:
    """Split our own options from ``words``; return the rest and the options.

    ``on_call`` is what holds if the words say nothing. Raises :class:`CannotRun`.
    """
    out = {name: value for name, value in env.items() if name != DOCTOR}
    out.update(_doctor())
    folder = "" if on_call else None
    while words:
        name, equals, value = words[0].partition("=")
        if words[0] == "--track":
            out["GPUSCOPE_TRACK"] = "1"
        elif words[0] == "--no-doctor":
            out.pop(DOCTOR, None)
        elif words[0] == "--no-on-call":
            folder = None
        elif name == "--on-call":
            if equals and not value:
                raise CannotRun("--on-call= needs a folder; --on-call alone chooses one")
            folder = value
        elif name == "--history":
            if not equals:
                words = words[1:]
                value = words[0] if words else ""
            if not re.fullmatch("[0-9]{1,9}", value):
                raise CannotRun(f"{name} needs a number: how many of the last allocations to keep")
            out["GPUSCOPE_HISTORY"] = value
        else:
            break
        words = words[1:]
    return words, RunOptions(out, folder)


def _doctor() -> Dict[str, str]:
    """Return the variables with which a trainer has its own failure diagnosed.

    They say which standard error is ours and how to start the doctor (``probe/diagnosis.py``).
    There are none if this installation has no doctor, or if there is no standard error.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = os.path.join(package, "cli", "commands", "doctor", "after_failure.py")
    try:
        found = os.fstat(2)
    except OSError:
        return {}
    if not os.path.isfile(program) or not sys.executable:
        return {}
    return {DOCTOR: json.dumps([found.st_dev, found.st_ino, sys.executable, program])}


def plan(
    words: List[str], env: Mapping[str, str], on_call: bool = False
) -> Tuple[List[str], Dict[str, str], str]:
    """Return the argv, the environment, and the lines for standard error.

    If no probe can be put in, the first line says why. ``on_call`` is what the user's settings say
    of ``--on-call``. Raises :class:`CannotRun`.
    """
    given = words
    words, chosen = options(words, env, on_call)
    env = chosen.environment
    try:
        argv = command(words, env)
    except UserError:
        if words[1:] and given[: -len(words)][-1:] == ["--on-call"]:
            raise CannotRun(
                f"{words[0]} is no script and no program here. If it is the folder of --on-call, "
                "it follows an equals sign",
                f"gpuscope run --on-call={words[0]} {words[1]}",
            ) from None
        raise
    if chosen.on_call is None:
        return _with_probe(argv, env)
    env, lines = on_call_settings(argv, env, chosen.on_call)
    argv, env, line = _with_probe(argv, env)
    return argv, env, "\n".join([line, *map(clean, lines)])


def _with_probe(argv: List[str], env: Mapping[str, str]) -> Tuple[List[str], Dict[str, str], str]:
    """Return the argv, the environment that puts the probe in, and the line that says so."""
    program = clean(argv[0])
    who = f"gpuscope: pid {os.getpid()} ({program})"
    outside = "From outside:  gpuscope ps"
    if env.get("GPUSCOPE") == "0":
        return argv, dict(env), f"{who} runs without the probe: GPUSCOPE=0. {outside}"
    hidden = hiding_option(argv)
    if hidden:
        return (
            argv,
            dict(env),
            f"{who} runs without the probe: python {hidden} prevents it. {outside}",
        )
    try:
        hook = prepare()
    except (RendezvousError, OSError) as error:
        why = (
            error
            if isinstance(error, RendezvousError)
            else f"cannot write to {rendezvous.directory()}: {error.strerror}"
        )
        return argv, dict(env), f"{who} runs without the probe: {why}. {outside}"
    line = (
        f"gpuscope: watching pid {os.getpid()} ({program}). See it from another terminal:  gpuscope"
    )
    if env.get("GPUSCOPE_HISTORY", "0").strip("0"):
        count = env["GPUSCOPE_HISTORY"]
        line += (
            f"\ngpuscope: keeps the last {count} allocations; their overhead is measured and "
            f"shown there"
        )
    return argv, environment(env, hook), line


def execute(argv: List[str], env: Mapping[str, str], line: str) -> NoReturn:
    """Replace this process by the command; never returns. Raises OSError if that fails."""
    sys.stdout.flush()
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
    os.execvpe(argv[0], argv, dict(env))


def _check_script(path: str) -> None:
    """Raise :class:`CannotRun` for scripts that Python would refuse with a misleading message."""
    if os.path.isdir(path):
        if not os.path.exists(os.path.join(path, "__main__.py")):
            raise CannotRun(f"{path} is a directory without a __main__.py. Name the script in it")
        return
    if not os.path.isfile(path):
        return  # a pipe can be read only once, and Python has to do that
    try:
        with open_regular(path) as file:
            start = file.read(256)
    except NotAFile:
        return  # a file of the kernel's: whatever it is, Python has to read it
    except OSError as error:
        raise CannotRun(f"{path} cannot be read: {error.strerror}") from None
    line = start.partition(b"\n")[0].decode("utf-8", "replace").strip()
    if start.startswith(b"\x7fELF"):
        raise CannotRun(
            f"{path} is a program, not a Python script. Run it as a command:  gpuscope run -- "
            f"{path}"
        )
    if line.startswith("#!") and not re.search("py|conda|uv", line):
        raise CannotRun(
            f"{path} is not a Python script ({line[:80]}). Run it as a command:  gpuscope run -- "
            f"{path}"
        )


def _program(name: str, env: Mapping[str, str]) -> str:
    found = shutil.which(name, path=env.get("PATH"))
    if found:
        return found
    if os.path.isdir(name):
        raise CannotRun(f"{name} is a directory")
    if os.path.isfile(name):
        raise CannotRun(
            f"{name} is not an executable file. A Python script needs no --:  gpuscope run {name}"
        )
    raise CannotRun(f"no such program{'' if os.sep in name else ' on PATH'}: {name}")
