"""This dialog asks before a trainer is written to, or before a probe is taken out.

Then it shows the progress, and what came of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import BindingType

from ...store.pending_requests import SourceError
from ...text.styled import Line
from ...text.units import percent_text
from ..shared.trainer_actions import failure
from ..shell.keymap import bindings_of, key_of
from ..widgets.bars import stacked_bar
from ..widgets.text_dialog import TextDialog
from .attach_work import AttachReport, attach_all, detach, trainer_of
from .attachable import Item, about, farewell, question

if TYPE_CHECKING:
    from ..shell.session import Session

log = logging.getLogger("gpuscope.tui")
BAR_CELLS = 24
YES, ENTER, LEAVE = (key_of(action, "ConsentDialog") for action in ("agree", "enter", "leave"))
LAST_ROWS = 2
"""Of the question: what is being done, or which key says yes."""
SAID = {
    "busy": "busy, not attached",
    "cancelled": "cancelled",
    "gone": "it has ended",
    "refused": "refused",
}


class ConsentDialog(TextDialog):
    """The question whether a probe may be put into a trainer, or taken out.

    One key says yes, and it is not Enter, which may be pressed by habit. ``state`` is asking,
    running or done.
    """

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("ConsentDialog")]

    def __init__(
        self,
        session: Session,
        items: Sequence[Item],
        of: int,
        taking_out: bool = False,
        opened: Callable[[Item], None] | None = None,
    ) -> None:
        """Show the trainers to attach to, and ask for consent.

        ``of`` is how many ranks the job has, with those that are not asked for. ``opened``
        follows where the user wants to see the trainer that was attached to.
        """
        super().__init__()
        self.session = session
        self.items = tuple(items)
        self.state = "asking"
        self.report = AttachReport()
        self._taking_out = taking_out
        self._opened = opened
        self._came: list[Line] = []
        self._now: tuple[int, str] = (0, "")
        self._hint = False
        if taking_out:
            self.heading = "Remove the probe?"
        elif not self._possible:
            self.heading = "Cannot attach"
        elif of == 1:
            self.heading = "Attach gpuscope's probe?"
        else:
            self.heading = f"Attach the probe to {len(self.items)} ranks?"

    # ── drawing ──

    def redraw(self) -> None:
        super().redraw()
        if not self.is_open:
            return
        # of many ranks the question alone may fill the screen
        if self.state == "running" or self._hint:
            self.keep_in_sight(max(0, self.lines.rows - LAST_ROWS), LAST_ROWS)
        self.say_keys(self._keys())

    def _keys(self) -> list[tuple[str, str]]:
        """Return what the keys do in this state."""
        if self.state == "running":
            return [(LEAVE, "cancel")]
        if self.state == "done":
            return [*([(ENTER, "open it")] if self._probe_has_answered() else []), (LEAVE, "close")]
        if not self._possible:
            return [(LEAVE, "close")]
        return [(YES, "remove it" if self._taking_out else "attach"), (LEAVE, "cancel")]

    @property
    def _possible(self) -> bool:
        return self._taking_out or all(item.consent is not None for item in self.items)

    def text(self) -> Iterable[Line]:
        if not self._possible:
            yield from about(self.items[0])
            yield []
            shown = "The training was not touched. Still shown: memory, load, its log."
            yield [("Not now. ", "warn"), (shown, "text")]
            return
        if self.state != "done":
            yield from farewell(self.items[0]) if self._taking_out else question(self.items)
            yield []
        if self.state == "asking":
            if self._hint:
                yield [
                    (f"{ENTER} does nothing here: ", "warn"),
                    (YES, "accent"),
                    (" confirms", "text"),
                ]
        elif self.state == "running":
            yield from self._progress()
        else:
            yield from self._outcome()

    def _progress(self) -> Iterable[Line]:
        number, text = self._now
        if len(self.items) > 1:
            done = number / len(self.items)
            bar = stacked_bar([(done, "accent")], 1.0, BAR_CELLS, self.lines.tokens.glyphs)
            yield [
                ("Working  ", "muted"),
                *bar,
                (f"  rank {number + 1} of {len(self.items)}", "title"),
                (f"  {percent_text(done)}", "muted"),
            ]
            yield [("         ", "muted"), (f"{self.items[number].name}: {text}", "text")]
        else:
            yield [("Working  ", "muted"), (text or "asked", "text")]

    def _outcome(self) -> Iterable[Line]:
        yield from self._came
        for item, code, words in self.report.rows:
            if code == "ok":
                yield [
                    ("Done     ", "ok"),
                    (f"{item.name} ", "title"),
                    (f"on {item.host}: {words}", "text"),
                ]
            else:
                outcome = SAID.get(code, "not attached")
                yield [
                    ("Stopped  ", "warn"),
                    (f"{item.name} ", "title"),
                    (f"on {item.host}: {outcome}: {words}", "text"),
                ]
        if self.report.left:
            names = ", ".join(item.name for item in self.report.left[:8])
            yield [("Not tried", "muted"), (f" {names}", "text")]
        if self.report.rows and not self.report.ok:
            done = sum(code == "ok" for _, code, _ in self.report.rows)
            yield []
            stays = (
                f"those stay attached, the rest was not touched. {key_of('attach')}: "
                "the list, to continue"
            )
            yield [(f"{done} of {len(self.items)} attached; ", "text"), (stays, "muted")]
        elif self.report.rows:
            yield []
            now = (
                "It is shown as a trainer" if len(self.items) == 1 else "They are shown as trainers"
            )
            yield [
                (f"{now} now. Undo: ", "muted"),
                (key_of("attach"), "accent"),
                (", then ", "muted"),
                (key_of("detach", "AttachScreen"), "accent"),
                (" on it", "muted"),
            ]

    # ── keys ──

    def _probe_has_answered(self) -> bool:
        return not self._taking_out and trainer_of(self.session, self.items[0]) is not None

    def action_agree(self) -> None:
        """Do it."""
        if self.state == "asking" and self._possible:
            self.state = "running"
            self.begin(self._do())
            self.redraw()

    def action_enter(self) -> None:
        """Open the trainer at the end; before that, Enter never agrees."""
        if self.state == "done" and self._probe_has_answered():
            self.dismiss()
            if self._opened is not None:
                self._opened(self.items[0])
        elif self.state == "asking":
            self._hint = self._possible
            self.redraw()

    def action_leave(self) -> None:
        """Close; while it runs, cancel."""
        if self.state == "running":
            self.cancel()
        else:
            self.dismiss()

    # ── doing ──

    async def _do(self) -> None:
        try:
            if self._taking_out:
                self._came = [
                    [("Done     ", "ok"), (await detach(self.session, self.items[0]), "text")]
                ]
            else:
                await attach_all(self.session, self.items, self._hear, self.report)
        except asyncio.CancelledError:
            if not self.is_open:
                raise
            if not self.report.rows:
                self._came = list(failure("cancelled", "nothing was done"))
        except SourceError as error:
            self._came = [list(line) for line in failure(error.code, error.what)]
        except Exception as error:  # an agent that breaks its promise must not end the screen
            log.exception("attaching failed")
            self._came = list(failure("failed", repr(error)))
        self.state = "done"
        self._before = self._notice()  # it says what is above, in the place of the keys
        self.redraw()

    def _hear(self, number: int, text: str) -> None:
        self._now = (number, text)
        self.redraw()
