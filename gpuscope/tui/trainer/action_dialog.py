"""This is the dialog in which a trainer is asked to do something.

Effect and price come first, then the progress, then what came of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from ...paths import short_path
from ...store.pending_requests import SourceError
from ...store.view import by_key
from ...text.styled import Line
from ...text.units import percent_text
from ..shared.trainer_actions import (
    ACTS,
    CAME,
    DEFAULT_STEPS,
    STEPS,
    TrainerAction,
    args_of,
    candidates,
    deadline_of,
    failure,
    history_on,
    question_of,
    who,
)
from ..shell.keymap import bindings_of, key_of
from ..shell.result_files import file_for
from ..widgets.bars import stacked_bar
from ..widgets.program import program
from ..widgets.text_dialog import TextDialog

if TYPE_CHECKING:
    from ...store.view import HostView, TrainerView
    from ...wire.frames import Progress
    from ..shell.session import Session

BAR_CELLS = 30
DO, LEAVE = key_of("go_on", "ActDialog"), key_of("leave", "ActDialog")


class ActDialog(TextDialog):
    """The question whether a trainer is to do something, and what came of it.

    ``state`` is asking, running, done or failed. One key does it, another leaves, or cancels it
    while it runs.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("ActDialog")]

    def __init__(self, session: Session, act: TrainerAction, trainer_key: str) -> None:
        super().__init__(act.title)
        self.session = session
        self.act = act
        self.state = "asking"
        self.path: Path | None = None
        self._key = trainer_key
        self._steps = DEFAULT_STEPS
        self._progress: tuple[float | None, str] = (None, "")
        self._came: list[Line] = []
        self._priced = False
        """Of history: its price is known and shown."""

    def on_mount(self) -> None:
        self.set_interval(0.5, self.redraw)

    # ── drawing ──

    @property
    def trainer(self) -> TrainerView | None:
        """Who is asked."""
        host = self.session.host
        return by_key(host.trainers, self._key) if host else None

    def redraw(self) -> None:
        super().redraw()
        if self.is_open:
            self.say_keys(self._keys())

    def _why_not(self) -> str:
        trainer = self.trainer
        return "it is gone" if trainer is None else self.act.why_not(trainer)

    def text(self) -> Iterable[Line]:
        trainer, why_not = self.trainer, self._why_not()
        if why_not and self.state == "asking":
            yield from [] if trainer is None else [[("Trainer  ", "muted"), *who(trainer)], []]
            yield [("Not possible: ", "warn"), (why_not, "text")]
            return
        if trainer is not None:
            yield from question_of(self.act, trainer, self._steps)
        yield []
        if self.state == "asking":
            yield from self._came
        elif self.state == "running":
            yield self._bar()
        else:
            yield from self._came
            if self.path is not None:
                yield [("File     ", "muted"), (short_path(self.path), "accent")]
                yield [("         ", "muted"), ("path copied", "faint")]

    def _keys(self) -> list[tuple[str, str]]:
        """Return what the keys do in this state."""
        if self.state == "running":
            return [(LEAVE, "cancel")]
        if self.state == "done":
            opens = [(DO, "open it")] if self.path is not None else []
            return [*opens, (LEAVE, "close")]
        if self.state == "failed":
            return [(DO, "ask again"), (LEAVE, "close")]
        if self._why_not():
            return [(LEAVE, "close")]
        if self._priced:
            return [(DO, "turn it on"), (LEAVE, "keep it off")]
        out = [(DO, self.act.verb)]
        if self.act.name == "profile":
            both = " ".join(key_of(f"choose({by})", "ActDialog") for by in (-1, 1))
            out.append((both, "steps"))
        if len(self._others()) > 1:
            out.append((key_of("other", "ActDialog"), "another trainer"))
        return [*out, (LEAVE, "cancel")]

    def _bar(self) -> Line:
        fraction, text = self._progress
        if fraction is None:
            return [("Working  ", "muted"), (text or "waiting for the trainer", "text")]
        bar = stacked_bar(
            [(min(max(fraction, 0.0), 1.0), "accent")], 1.0, BAR_CELLS, self.lines.tokens.glyphs
        )
        return [("Working  ", "muted"), *bar, (f"  {percent_text(fraction)}  {text}", "text")]

    # ── keys ──

    def _others(self) -> list[TrainerView]:
        host: HostView | None = self.session.host
        return candidates(host, self.trainer) if host is not None else []

    def action_other(self) -> None:
        """Another trainer, before anything was asked."""
        others = sorted(self._others(), key=lambda t: t.id)
        if self.state == "asking" and not self._priced and len(others) > 1:
            keys = [t.key for t in others]
            at = keys.index(self._key) if self._key in keys else -1
            self._key = keys[(at + 1) % len(keys)]
            self.redraw()

    def action_choose(self, by: int) -> None:
        """Fewer or more steps."""
        if self.act.name == "profile" and self.state == "asking":
            at = max(0, min(len(STEPS) - 1, STEPS.index(self._steps) + by))
            self._steps = STEPS[at]
            self.redraw()

    def action_history(self) -> None:
        """Open the question about history in place of that for a snapshot."""
        if self.act.name == "snapshot" and self.state != "running" and not self._why_not():
            app, key = program(self.app), self._key
            self.dismiss()
            app.open("act", ACTS["history"], key)

    def action_leave(self) -> None:
        """Close, or cancel what runs."""
        if self.state == "running":
            self.cancel()
        else:
            self.dismiss()

    def action_go_on(self) -> None:
        """Do it; when it is done, open what came."""
        if self.state == "running" or (self.state != "done" and self._why_not()):
            return
        if self.state == "done":
            if self.path is not None:
                self._open(self.path)
        else:
            self.state, self._progress = "running", (None, "")
            self.begin(self._do())
            self.redraw()

    def _open(self, path: Path) -> None:
        app = program(self.app)
        self.dismiss()
        app.open("profile" if self.act.keeps == "profile" else "snapshot", path)

    # ── asking ──

    async def _do(self) -> None:
        trainer, host, act = self.trainer, self.session.host, self.act
        assert trainer is not None
        assert host is not None
        turning_on = self._priced
        self.path, self._came = None, []
        try:
            path = file_for(act.keeps, host.name, trainer) if act.keeps else None
            args = args_of(act.name, self._steps, trial=not turning_on)
            result = await self.session.asker.ask(
                trainer,
                act.name,
                args,
                deadline_of(act.name, trainer, self._steps),
                self._hear,
                path,
                act.max_bytes,
            )
        except asyncio.CancelledError:
            self._end("failed", failure("cancelled", "no answer; nothing is left in the trainer"))
            return
        except SourceError as error:
            self._end("failed", failure(error.code, error.what))
            return
        except OSError as error:
            self._end("failed", failure("failed", f"the file cannot be written: {error.strerror}"))
            return
        if turning_on:
            self._end("done", history_on(result.value))
        elif act.name == "history":
            self._priced = True
            self._end("asking", CAME[act.name](result.value))
        else:
            self.path = path
            if act.name in ("look", "work"):
                self.session.asker.keep(trainer, act.name, result.value)
            if path is not None:
                self.app.copy_to_clipboard(str(path))
                text = f"{act.name} of pid {trainer.definition.pid}: {short_path(path)}"
                self.session.notices.say(text, kind="file", path=path, opens=act.keeps)
            self._end("done", CAME[act.name](result.value))

    def _end(self, state: str, lines: Iterable[Line]) -> None:
        self.state, self._came = state, [list(line) for line in lines]
        self.redraw()

    def _hear(self, progress: Progress) -> None:
        self._progress = (progress.fraction, progress.text)
        self.redraw()
