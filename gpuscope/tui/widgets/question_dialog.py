"""A dialog that asks the host one question when it opens, and shows what it says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...text.styled import Line
from .text_dialog import TextDialog

if TYPE_CHECKING:
    from ..shell.session import Session


async def ask(
    session: Session, kind: str, args: dict[str, Any], seconds: float, replayed: str
) -> Mapping[str, Any]:
    """Ask the host and return its answer.

    ``replayed`` says why a recording has none. Raises ``SourceError``.
    """
    from ...store.pending_requests import SourceError

    if session.replay is not None or session.hosts is None:
        raise SourceError("not_supported", replayed)
    result = await session.hosts.source.request(kind, args, seconds)
    return result.value


class AskedOnce(TextDialog):
    """A dialog that asks the host when it opens.

    ``title`` stands in its frame, ``waiting`` in it until the answer is there.
    """

    def __init__(self, session: Session, title: str, waiting: str) -> None:
        # asked of the host as it is, also where the screen shows what was
        super().__init__(title + (", now" if session.paused_seconds is not None else ""))
        self.session = session
        self._shown: list[Line] = [[(waiting, "muted")]]

    async def answer(self) -> list[Line]:
        """Return the lines to show once the host has answered.

        When it raises :class:`gpuscope.store.pending_requests.SourceError`, the reason is
        shown.
        """
        raise NotImplementedError

    async def request(
        self, kind: str, args: dict[str, Any], seconds: float, replayed: str
    ) -> Mapping[str, Any]:
        """Ask the host and return its answer; see :func:`ask`."""
        return await ask(self.session, kind, args, seconds, replayed)

    def text(self) -> Iterable[Line]:
        return self._shown

    def on_mount(self) -> None:
        self.begin(self._ask())

    async def _ask(self) -> None:
        from ...store.pending_requests import SourceError

        try:
            self._shown = await self.answer()
        except SourceError as error:
            self._shown = [[("unknown: ", "warn"), (error.what, "text")]]
        self.redraw()
