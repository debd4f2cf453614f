"""This module leads from a verb to the running app, and to its end.

It says whether the terminal is usable and where frames come from.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ... import config, paths
from ...exit_status import ExitStatus

if TYPE_CHECKING:
    from argparse import Namespace

    from ...config import Settings
    from ...lab.config import LabConfig
    from ...store.replay import ReplaySource
    from ...store.source import Source
    from ..background.sources import Hosts
    from ..hosts.ssh_dialog import Prompts
    from ..shell.session import Session

log = logging.getLogger("gpuscope")

LOG_BYTES, LOG_FILES = 1 << 20, 3


def why_unusable(
    stdin: TextIO, stdout: TextIO, stderr: TextIO, environ: Mapping[str, str] = os.environ
) -> str:
    """Return why the screen cannot be drawn here, "" when it can.

    Textual draws on stderr and sizes by stdout.
    """
    for name, stream in (
        ("standard input", stdin),
        ("standard output", stdout),
        ("standard error", stderr),
    ):
        try:
            if not stream.isatty():
                return f"{name} is not a terminal"
        except (AttributeError, ValueError):
            return f"{name} is closed"
    term = environ.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        return f"TERM={term or '(not set)'} cannot move the cursor"
    encoding = (getattr(stderr, "encoding", "") or "").lower().replace("-", "").replace("_", "")
    if encoding != "utf8":
        return (
            f"the terminal's encoding is {encoding or 'unknown'}, not UTF-8 (PYTHONIOENCODING, "
            "LC_ALL)"
        )
    return ""


def run_app(
    start_screen: str = "overview",
    lab_config: LabConfig | None = None,
    replay: ReplaySource | None = None,
    lab_autostart: bool = False,
    debug: bool = False,
    without_screen: str = "",
    make_hosts: Callable[[float], Hosts] | None = None,
    prompts: Prompts | None = None,
    readonly: bool = False,
    remote_options: Namespace | None = None,
    theme: str | None = None,
) -> int:
    """Run the TUI until the user leaves and return its exit code.

    It watches this machine; ``replay`` shows a recording instead, ``make_hosts`` several places,
    and ``prompts`` what ssh asks on the way to them;
    ``readonly``: no process is acted on; ``remote_options`` are for hosts that are added later;
    ``theme`` is used this time, and not remembered.
    Where the terminal cannot show it, prints why and what
    ``gpuscope devices`` prints, and returns its exit code.
    """
    reason = why_unusable(sys.stdin, sys.stdout, sys.stderr)
    if reason:
        return plainly(reason, replay is not None, without_screen)
    load_asyncio_without_tls()
    gc.disable()  # until the first frame is drawn: nothing that is loaded before it is garbage
    over_ssh = bool(os.environ.get("SSH_CONNECTION"))
    prepare_environment(over_ssh)
    settings, problems = config.load()
    settings = replace(settings, readonly=settings.readonly or readonly)
    from ..background import view_state
    from ..shell.session import Session

    remembered, problem = view_state.load()
    session = Session(
        make_source=None if replay or make_hosts else lambda hz: local_source(hz, settings),
        make_hosts=make_hosts,
        replay=replay,
        settings=settings,
        state=remembered,
        over_ssh=over_ssh,
        lab=lab_config,
        lab_autostart=lab_autostart,
        remote_options=remote_options,
    )
    if debug:
        session.notices.say(f"writing a log to {start_log()}")
    for text in [*problems, problem]:
        if text:
            session.notices.say(text, "warn")
    if over_ssh:
        lighter = "over ssh: charts every 5 s, 256 colours, no mouse"
        session.notices.say(f"{lighter}: the config file changes it")
    mouse = settings.mouse if settings.mouse is not None else not over_ssh
    return _run(session, start_screen, mouse, prompts, theme)


def load_asyncio_without_tls() -> None:
    """Load asyncio without OpenSSL, which takes 5 MiB.

    Every agent is reached through the pipes of a child.
    """
    if "asyncio" not in sys.modules and "ssl" not in sys.modules:
        sys.modules["ssl"] = None  # type: ignore[assignment]  # what is None here cannot be imported
        try:
            import asyncio  # noqa: F401
        finally:
            del sys.modules["ssl"]


def local_source(hz: float, settings: Settings) -> Source:
    """Return the agent on this machine, run as a child process.

    That may take 10 ms: it makes the agent's zip if need be.
    """
    import socket

    from ...attach.bundle import local_agent_argv
    from ...store.source import AgentSource
    from ...store.view import LOCAL

    argv = local_agent_argv(hz)
    return AgentSource(
        argv if settings.redact else [*argv, "--no-redact"], LOCAL, socket.gethostname()
    )


def _run(
    session: Session,
    start: str,
    mouse: bool,
    prompts: Prompts | None = None,
    theme: str | None = None,
) -> int:
    from ..background.view_state import save
    from .app import GpuscopeApp

    app = GpuscopeApp(session, start, theme)
    if prompts is not None:
        prompts.app = app
    try:
        app.run(mouse=mouse)
    finally:
        session.close()
    problem = save(replace(session.state))
    # nothing is collected object by object at the end: the program is gone 60 ms sooner
    gc.freeze()
    if problem:
        print(f"gpuscope: {problem}", file=sys.stderr)
    # Textual prints the traceback of a crash itself and says so only by its return code.
    code = app.return_code or 0
    return ExitStatus.CRASHED if code == 1 and app.return_value is None else code


def plainly(reason: str, replaying: bool = False, instead: str = "") -> int:
    """Say why there is no screen and what needs none, and list the devices."""
    import argparse

    # a terminal without UTF-8 gets "?" for what it cannot show
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if replaying:
        print(f"gpuscope: a replay needs a terminal: {reason}.", file=sys.stderr)
        return 3
    between = f"\n{instead}\n" if instead else " "
    print(
        f"gpuscope: no screen, because {reason}.{between}Here is `gpuscope devices`:",
        file=sys.stderr,
    )
    from ...cli.commands.devices import verb as devices_verb

    parser = argparse.ArgumentParser()
    devices_verb.add_arguments(parser)
    return int(devices_verb.run(parser.parse_args([])))


def prepare_environment(over_ssh: bool) -> None:
    """Set what Textual reads when it is imported: no animations, and fewer colours over ssh.

    What the user has chosen holds.
    """
    os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
    os.environ.setdefault("TEXTUAL_SMOOTH_SCROLL", "0")
    # exported by some shells, and then wrong after the first resize
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)
    if over_ssh:
        os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "256")


def start_log() -> Path:
    """Send our own log to a rotated file; exceptions included."""
    from logging.handlers import RotatingFileHandler

    folder = paths.log_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "gpuscope.log"
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    logging.captureWarnings(True)
    log.info("started: pid %d, Python %s", os.getpid(), sys.version.split()[0])
    return path
