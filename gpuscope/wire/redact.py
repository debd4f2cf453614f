"""Takes names of people, hosts, paths, commands and scripts out of frames.

The same name always becomes the same pseudonym. The rules are an allow-list: kinds and fields that
are not named here are dropped. This module uses only the standard library.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Dict, List, Optional

from .frames import TABLES, Bye, Def, Event, Frame, Hello, Key, ProcDef, Sample, TrainerDef

_PROGRAM = re.compile(r"(python[0-9.]*|pt_main_thread|torchrun|nvidia-[a-z-]+|Xorg|gnome-shell)$")
_IN_PATH = r"[^\s'\",;:()\[\]<>]"
_FILES = r"py|ipynb|sh|pt|pth|ckpt|pkl|bin|safetensors|log|out|txt|csv|json|ya?ml|toml"
# File names and accounts are searched only from the start of each word. A match from a later
# character would also be found from the first one, and trying every character would take quadratic
# time.
_PATH = re.compile(
    rf"(?<![\w.<])(?:~\w*|\.{{0,2}})/{_IN_PATH}+|(?<!{_IN_PATH}){_IN_PATH}+\.(?:{_FILES})\b"
)
_ACCOUNT = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w.-]+(?:\+[\w.+-]*@[\w.-]+)*")
_NUMBERS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")


class Redactor:
    """Replaces names and remembers them: a user is ``user-1`` everywhere in a recording."""

    def __init__(self) -> None:
        self._names: Dict[str, Dict[str, str]] = {}
        self._known: Optional[re.Pattern[str]] = None
        self._pseudonyms: Dict[str, str] = {}

    def frame(self, frame: Frame) -> Optional[Frame]:
        """Return the frame without names, or None for a kind that a recording does not need."""
        if isinstance(frame, Hello):
            host, boot = self._name("host", frame.host), self._name("boot", frame.boot)
            return replace(frame, host=host, boot=boot, uid=-1, nonce="")
        if isinstance(frame, Def):
            return self._definition(frame)
        if isinstance(frame, Event):
            data = {self._text(key): self._cell(value) for key, value in frame.data.items()}
            return replace(frame, text=self._text(frame.text), data=data)
        if isinstance(frame, Sample):
            sample = replace(frame, why=[[*row[:3], *self._row(row[3:])] for row in frame.why])
            for table in TABLES:
                setattr(sample, table, [self._row(row) for row in getattr(frame, table)])
            return sample
        if isinstance(frame, Bye):
            return Bye(self._text(frame.why))
        return frame if isinstance(frame, Key) else None

    def hide(self, kind: str, name: str) -> str:
        """Return the pseudonym of a name. From now on :meth:`text` replaces this name too."""
        return self._name(kind, name)

    def text(self, text: str) -> str:
        """Return text from outside of frames without the names seen so far, paths and addresses."""
        return self._text(text)

    def _definition(self, frame: Def) -> Def:
        if frame.proc is not None:
            return replace(frame, proc=self._process(frame.proc))
        if frame.trainer is not None:
            return replace(frame, trainer=self._trainer(frame.trainer))
        return frame

    def _process(self, process: ProcDef) -> ProcDef:
        name = process.name
        if name is not None and not _PROGRAM.match(name):
            name = self._name("program", name)
        command = None if process.command is None else self._name("command", process.command)
        user = None if process.user is None else self._name("user", process.user)
        container = (
            None if process.container is None else self._name("container", process.container)
        )
        pod = None if process.pod is None else self._name("pod", process.pod)
        return replace(process, user=user, command=command, name=name, container=container, pod=pod)

    def _trainer(self, trainer: TrainerDef) -> TrainerDef:
        job = None if trainer.job is None else self._name("job", trainer.job)
        script = None if trainer.script is None else self._name("script", trainer.script)
        settings = (
            None if trainer.allocator_settings is None else self._text(trainer.allocator_settings)
        )
        pod = None if trainer.pod is None else self._name("pod", trainer.pod)
        return replace(trainer, job=job, script=script, allocator_settings=settings, pod=pod)

    def _name(self, kind: str, original: str) -> str:
        if not original:
            return original
        names = self._names.setdefault(kind, {})
        if original not in names:
            names[original] = f"{kind}-{len(names) + 1}"
            self._pseudonyms.setdefault(original, names[original])
            self._known = None
        return names[original]

    def _row(self, row: List[Any]) -> List[Any]:
        return [self._text(cell) if isinstance(cell, str) else cell for cell in row]

    def _cell(self, value: Any) -> Any:
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        """Return free text in which the names seen so far, paths and addresses are replaced."""
        if self._known is None and self._pseudonyms:
            longest_first = sorted(self._pseudonyms, key=len, reverse=True)
            self._known = re.compile(
                r"(?<!\w)(?:" + "|".join(map(re.escape, longest_first)) + r")(?!\w)"
            )
        if self._known is not None:
            text = self._known.sub(lambda match: self._pseudonyms[match[0]], text)
        for pattern, word in ((_PATH, "<path>"), (_ACCOUNT, "<address>"), (_NUMBERS, "<address>")):
            text = pattern.sub(word, text)
        return text
