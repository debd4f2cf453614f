"""Share what the verbs need that look at other hosts.

This covers their options, the connections to their targets, and the questions that ssh may ask.
Nothing heavy is imported before a target needs it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..attach import targets as parsing
from ..attach.targets import BadTarget, Target

if TYPE_CHECKING:
    from ..attach.askpass import Askpass, SshQuestion
    from ..store.remote import RemoteSource

__all__ = ["BadTarget", "Target", "Ways", "add_arguments", "is_remote", "one_place", "places"]

VIA = (
    "reach the host or container by this command, such as 'docker exec -i NAME', 'sudo -n -u "
    "USER', 'srun --overlap --jobid J -w NODE', 'ssh LOGIN srun …'"
)


WHERE = "[USER@]HOST, slurm:JOB, k8s:NAMESPACE/POD; default: this machine"


NAMES = frozenset(("--via", "--ssh-command", "--remote-python"))
WAYS = "--via, --ssh-command, --remote-python: see gpuscope attach --help"


def add_arguments(parser: argparse.ArgumentParser, explained: bool = False) -> None:
    """Add the options for connections to other hosts.

    The help of one verb explains them; that of the others has a line that refers to it.
    """
    group = parser.add_argument_group("for another host or container", None if explained else WAYS)

    def add(name: str, default: str, metavar: str, text: str) -> None:
        shown = text if explained else argparse.SUPPRESS
        group.add_argument(name, default=default, metavar=metavar, help=shown)

    add("--via", "", "'PREFIX'", VIA)
    add(
        "--ssh-command",
        "ssh",
        "'WORDS'",
        "the command to use as ssh, such as 'ssh -F FILE' (default ssh)",
    )
    add("--remote-python", "", "PATH", "the Python to use there (default: the first in PATH)")


def is_remote(args: argparse.Namespace, text: str | None) -> bool:
    """Whether a verb that may also be given a file or a PID is to look elsewhere."""
    return bool(args.via) or (text is not None and parsing.is_remote_word(text))


def places(
    args: argparse.Namespace, texts: Sequence[str], hosts_files: Sequence[str] = ()
) -> list[Target]:
    """The targets, jobs of a cluster taken apart into their nodes. Raises :class:`BadTarget`."""
    found = parsing.parse_all(texts, hosts_files, args.via)
    if len(found) == 1 and found[0].kind == parsing.LOCAL:
        return found
    from ..attach import clusters

    return clusters.resolve(found, parsing.prefix_words(args.ssh_command))


def one_place(args: argparse.Namespace, text: str | None) -> Target:
    """The only place of a verb that looks at one. Raises :class:`BadTarget`."""
    found = places(args, [text] if text is not None else [])
    if len(found) > 1:
        one = (
            f"{text} --via …"
            if args.via
            else f"--via 'srun --overlap --jobid J -w {found[0].node}'"
        )
        raise BadTarget(
            f"{text}: {len({t.where for t in found})} hosts, but this verb takes one. Next: {one}"
        )
    return found[0]


def words_for(args: argparse.Namespace, place: Target, pid: int) -> str:
    """Return the words that mean this process of a place to a verb, for a command to be copied."""
    import shlex

    words = []
    if place.is_remote:
        words += ["--ssh-command", args.ssh_command] if args.ssh_command != "ssh" else []
        words += ["--remote-python", args.remote_python] if args.remote_python else []
    return " ".join(filter(None, (place.words_for(pid), shlex.join(words))))


class Ways:
    """Make sources for targets, all with the same limits and questions. A context manager.

    ``answer`` answers ssh's questions. If it is None they are asked on the terminal; without a
    terminal nobody is asked.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        answer: Callable[[SshQuestion], str | None] | None = None,
        redact: bool = True,
    ) -> None:
        from ..store.remote import Gate

        self._ssh = parsing.prefix_words(args.ssh_command)
        self._python: str = args.remote_python
        self._redact = redact
        self._answer = answer or (ask_on_terminal if _terminal() else None)
        self._askpass: Askpass | None = None
        self._gate = Gate()
        self._made = 0

    def __enter__(self) -> Ways:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ask the user nothing any more."""
        if self._askpass is not None:
            self._askpass.close()
            self._askpass = None

    def source(self, target: Target, hz: float) -> RemoteSource:
        """A source for a place. Raises :class:`BadTarget`."""
        from ..attach import bootstrap, transport, transport_failures
        from ..attach.ssh_settings import jump_of
        from ..store.remote import CONNECTS, Launch, RemoteSource

        try:
            way = transport.route(target, self._ssh, self._python)
        except bootstrap.BadPython as error:
            raise BadTarget(f"{error}.") from None
        self._made += 1
        askpass = self._ensure_askpass() if way.asks else None
        questions = askpass.place(way.label) if askpass is not None else None
        launch = Launch(
            argv=way.argv if questions is not None else way.batch_argv,
            again_argv=way.batch_argv,
            preamble=lambda hz: bootstrap.preamble(hz, self._redact),
            judge=lambda code, stderr: transport_failures.judge(way.program, code, stderr),
            env={**os.environ, **questions.environment} if questions is not None else None,
            questions=questions,
            # few connections never overload one
            jump=lambda: jump_of(target, self._ssh) if self._made > CONNECTS else "",
        )
        return RemoteSource(launch, way.key, way.label, hz, self._gate)

    def _ensure_askpass(self) -> Askpass | None:
        from ..attach.askpass import Askpass

        if self._askpass is None and self._answer is not None:
            self._askpass = Askpass(self._answer)
        return self._askpass


def _terminal() -> bool:
    try:
        return sys.stdin.isatty() and sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def ask_on_terminal(question: SshQuestion) -> str | None:
    """Ask the user here what ssh asks. A notice waits for no answer."""
    sys.stderr.write("\r\x1b[K")
    if question.notice:
        sys.stderr.write(question.prompt + "\n")
        return ""
    try:
        if question.secret:
            import getpass

            return getpass.getpass(("Not done. " if question.again else "") + question.prompt + " ")
        sys.stderr.write(question.prompt + " ")
        sys.stderr.flush()
        with open("/dev/tty") as terminal:
            return terminal.readline().strip() or None
    except (OSError, EOFError, KeyboardInterrupt):
        return None
