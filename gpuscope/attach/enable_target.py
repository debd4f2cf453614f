"""Asks the Python that ``gpuscope enable`` prepares, and has it compile our sources."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from typing import List, Mapping, Optional

from ..errors import UsageError, UserError
from ..exit_status import ExitStatus
from ..process import child
from ..wire.clean import clean
from . import run
from .probe_source import Contents

PATIENCE_SECONDS = 60.0
_MARK = "gpuscope-facts:"
_ASK = """
import json, os, site, sys, sysconfig
from importlib.util import find_spec
try:
    torch = find_spec("torch") is not None
except Exception:
    torch = False
stdlib = sysconfig.get_path("stdlib")
print("\\n" + {mark!r} + json.dumps({{
    "executable": sys.executable, "prefix": sys.prefix, "version": list(sys.version_info[:3]),
    "implementation": sys.implementation.name, "tag": sys.implementation.cache_tag or "",
    "site": sysconfig.get_path("purelib"), "sites": site.getsitepackages(),
    "user_site": site.getusersitepackages(), "reads_user_site": bool(site.ENABLE_USER_SITE), "torch": torch,
    "is_environment": sys.prefix != sys.base_prefix, "reads_site": not sys.flags.no_site,
    "managed": os.path.isfile(os.path.join(stdlib, "EXTERNALLY-MANAGED")),
}}))
"""  # noqa: E501
_COMPILE = """
import os, py_compile, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        path = os.path.join(folder, name)
        shown = os.path.join(sys.argv[2], os.path.relpath(path, sys.argv[1]))
        py_compile.compile(path, path + "c", dfile=shown, doraise=True,
                           invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""


class CannotEnable(UserError):
    """An environment cannot or should not be changed. The text says why and what to do."""

    exit_status = ExitStatus.PROBLEMS

    def __init__(self, what: str) -> None:
        super().__init__(clean(what))  # it repeats words that were typed, which may hold line ends


@dataclass(frozen=True)
class EnableTarget:
    """What a Python reports about itself. ``why`` says in words how it was chosen."""

    python: str
    why: str
    prefix: str
    version: str
    tag: str
    site: str
    sites: List[str]
    user_site: str
    reads_user_site: bool
    is_environment: bool
    managed: bool
    torch: bool

    @property
    def is_own(self) -> bool:
        """Whether it is the environment in which gpuscope itself runs."""
        return os.path.realpath(self.prefix) == os.path.realpath(sys.prefix)


def find(python: Optional[str], env: Mapping[str, str]) -> EnableTarget:
    """Return the Python to prepare. Raises :class:`CannotEnable` if there is none.

    It is the one that ``python`` names (a program, or the directory of an environment), else that
    of the active environment, else the first in PATH, as for ``gpuscope run``.
    """
    if python is None:
        try:
            program = run.python(env)
        except UsageError as error:
            reason = str(error).split(". ", 1)[0]
            raise CannotEnable(
                f"{reason}. Name it:  gpuscope enable --python /path/to/python"
            ) from None
        variables = ("VIRTUAL_ENV", "CONDA_PREFIX")
        active = next((v for v in variables if env.get(v) and program.startswith(env[v])), "PATH")
        return ask(
            program, "found in PATH; no environment is active" if active == "PATH" else f"${active}"
        )
    inside = os.path.join(python, "bin", "python")
    program = os.path.abspath(os.path.expanduser(inside if os.path.isdir(python) else python))
    if not os.path.exists(program):
        what = "an environment without bin/python" if os.path.isdir(python) else "no such program"
        raise CannotEnable(
            f"{python}: {what}. In the environment that trains, this prints its Python:  command "
            "-v python"
        )
    return ask(program, "--python")


def ask(program: str, why: str) -> EnableTarget:
    """Return what ``program`` reports about itself.

    Raises :class:`CannotEnable` if it is not a Python that can hold the probe.
    """
    output = _execute([program, "-c", _ASK.format(mark=_MARK)], program)
    line = next((line for line in reversed(output.splitlines()) if line.startswith(_MARK)), "")
    try:
        facts = json.loads(line[len(_MARK) :])
        version = tuple(facts["version"])
        target = EnableTarget(
            program,
            why,
            facts["prefix"],
            ".".join(map(str, version)),
            facts["tag"],
            os.path.abspath(facts["site"]),
            [os.path.abspath(path) for path in facts["sites"]],
            os.path.abspath(facts["user_site"]),
            bool(facts["reads_user_site"]),
            bool(facts["is_environment"]),
            bool(facts["managed"]),
            bool(facts["torch"]),
        )
    except (ValueError, KeyError, TypeError):
        raise CannotEnable(
            f"{program} does not answer as a Python 3 does. Name another:  --python /path/to/python"
        ) from None
    if version < (3, 8) or facts["implementation"] != "cpython":
        raise CannotEnable(
            f"{program} is {facts['implementation']} {target.version}: the probe needs CPython 3.8 "
            "or newer. Name another:  --python /path/to/python"
        )
    return target


def compiled(contents: Contents, target: EnableTarget, shown: str) -> Contents:
    """Return ``contents`` with byte code, compiled by the target's own Python, next to each source.

    ``shown`` is the directory that its tracebacks name. Raises :class:`CannotEnable`.
    """
    with tempfile.TemporaryDirectory(prefix="gpuscope-") as folder:
        for name, content in contents.items():
            path = os.path.join(folder, *name.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as stream:
                stream.write(content)
        _execute([target.python, "-I", "-c", _COMPILE, folder, shown], target.python)
        both = dict(contents)
        for name in contents:
            with open(os.path.join(folder, *name.split("/")) + "c", "rb") as stream:
                both[name + "c"] = stream.read()
    return both


def _execute(argv: List[str], program: str) -> str:
    """Return what ``argv`` prints. Raises :class:`CannotEnable` if it fails.

    It runs without the probe, and in a way that no file of the user is imported by accident.
    """
    try:
        output = child.ask(argv, PATIENCE_SECONDS, {**os.environ, "GPUSCOPE": "0"}, folder="/")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CannotEnable(
            f"{program} cannot be started: {reason}. Name another:  --python /path/to/python"
        ) from None
    if output.failure:
        last_words = f": {output.last_words}" if output.code else ""
        raise CannotEnable(f"{program} {output.failure}{last_words}. Try:  {program} -c pass")
    return output.output.decode("utf-8", "replace")
