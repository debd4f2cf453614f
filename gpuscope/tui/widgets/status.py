"""The status line: where we look, at what, how fresh it is, and what looking costs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from textual.strip import Strip

from ...store.view import RECORDING_ENDS, HistoryOf, HostView, no_history
from ...text import styled
from ...text.clock import clock_text
from ...text.styled import Line, Piece
from ...text.units import age_text, count_text, percent_text
from ...text.width import cells as text_cells
from ..cells import fit
from ..charts.strips import Painted, strip_of
from ..theme import Glyphs, Tokens

if TYPE_CHECKING:
    from ...model.ended_jobs import EndedJob

LINK_CELLS = 56
"""For why a link is not live; all of it stands in the log, and where there is nothing else to show.
"""
ENDED_SHARE = 3
"""One part in so many of the line is there for how jobs ended."""
LEAST_CELLS = 12
"""With less room than that the reason is left out."""


class Situation(NamedTuple):
    """What the status line tells besides the host.

    It has the pause and the position in words, the viewer's own load in percent of a core,
    which of several hosts is shown, whether the way to the terminal is slow, which jobs ended
    badly in the last day, and whether nobody has looked at one of them.
    """

    paused: str = ""
    replay: str = ""
    viewer_percent: float | None = None
    place: str = ""
    slow: str = ""
    ended: tuple[EndedJob, ...] = ()
    news: bool = False


class StatusLine(Painted):
    """The line at the top of the main screen.

    What has the least meaning goes first where there is little room.
    """

    DEFAULT_CSS = "StatusLine { height: 1; background: $panel; }"

    def __init__(self, **kwargs: str) -> None:
        super().__init__(**kwargs)
        self._host: HostView | None = None
        self._situation = Situation()
        self._history: HistoryOf = no_history

    def show(
        self, host: HostView | None, situation: Situation, history: HistoryOf = no_history
    ) -> None:
        """Draw what differs. Nothing does where host and situation are those of before."""
        self._history = history
        if host is None or host is not self._host or situation != self._situation:
            self._host, self._situation = host, situation
            self.repaint()

    def paint(self, width: int, height: int, tokens: Tokens) -> list[Strip]:
        left: list[tuple[int, Piece]] = [(0, (" gpuscope ", "bold reverse accent"))]
        right: list[tuple[int, Piece]] = []
        host, now = self._host, self._situation
        if host is None:
            left.append((1, (" starting", "muted")))
        else:
            left += self._subject(host, now.place)
            if now.ended:
                said = ended_text(now.ended, width)
                # the sign that the Doctor gives them: they are over
                news: Piece = (f"  {tokens.glyphs.idle} {said}", "warn")
                left.append((3, news if now.news else (f"  {said}", "muted")))
            kept = [piece for weight, piece in left if not weight]
            right += self._state(host, tokens, width - styled.cells(kept))
        if now.slow:
            right.insert(0, (6, (now.slow, "muted")))
        if now.paused:
            right.insert(0, (1, (f" {now.paused} ", "badge")))
        if now.replay:
            right.insert(0, (2, (now.replay, "accent")))
        pieces_left, pieces_right = self._fitting_ends(left, right, width)
        gap = max(0, width - styled.cells(pieces_left) - styled.cells(pieces_right))
        return [strip_of([*pieces_left, (" " * gap, "text"), *pieces_right], width, tokens)]

    def _subject(self, host: HostView, place: str) -> list[tuple[int, Piece]]:
        out: list[tuple[int, Piece]] = []
        if host.badge:
            out.append((0, (f" {host.badge} ", "badge")))
        out.append((0, (f"  {host.name}", "title")))
        if place:
            out.append((0, (f" {place}", "accent")))
        models = Counter(short_model(d.definition.name) for d in host.devices if d.gone is None)
        if models:
            out.append(
                (
                    2,
                    (
                        "  " + " + ".join(f"{count}×{name}" for name, count in models.items()),
                        "text",
                    ),
                )
            )
        if host.definition.driver_version:
            out.append((7, (f"  driver {host.definition.driver_version}", "muted")))
        if host.definition.cuda_driver_version:
            out.append((8, (f"  CUDA {host.definition.cuda_driver_version}", "muted")))
        ranks = [sum(t.gone is None for t in job.trainers) for job in host.jobs]
        seen, jobs = sum(ranks), sum(map(bool, ranks))
        if seen:
            from ...model.job_state import worst_of_jobs  # what a start does not wait for

            text = f"{count_text(jobs, 'job')} · {seen} ranks" if seen > jobs else ""
            kind = worst_of_jobs(host, self._history)
            out.append((4, (f"  {text or count_text(seen, 'trainer')}", kind)))
        return out

    def _state(self, host: HostView, tokens: Tokens, room: int) -> list[tuple[int, Piece]]:
        out: list[tuple[int, Piece]] = []
        link = host.link
        if link.state in ("connecting", "stale", "ended"):
            from ...model.link_state import link_state

            state = link_state(host)
            away = link.age_seconds is not None and state.kind in ("warn", "bad")
            word = f"no data for {age_text(link.age_seconds or 0.0)}" if away else state.word
            if link.state == "ended" and host.sampled_seconds is not None:
                word = "ended"
            why = "" if state.word == "stale" else state.why
            why += link.text.removeprefix(link.reason)
            text = f"{getattr(tokens.glyphs, state.kind)} {word}"
            left = min(LINK_CELLS, room - text_cells(text) - 4)
            text += f": {fit(why, left).rstrip()}" if why and left >= LEAST_CELLS else ""
            out.append((1, (text, "muted" if state.kind == "idle" else state.kind)))
        elif link.state == "replay" and link.text:
            # at the end the clock and the jobs say more; a fault of the file goes before them
            out.append((5 if link.text == RECORDING_ENDS else 2, (link.text, "muted")))
        elif link.state == "live":
            out.append((1, (f"{tokens.glyphs.ok} live", "ok")))
        if host.rate_hz and not self._situation.replay:
            out.append((5, (f"{host.rate_hz:.1f}".removesuffix(".0") + " Hz", "muted")))
        viewer, agent = self._situation.viewer_percent, host.number("agent_cpu_percent")
        if viewer is not None and not host.badge:
            parts = f"self {percent_text(viewer / 100)}"
            out.append(
                (
                    6,
                    (
                        parts
                        + (f" + agent {percent_text(agent / 100)}" if agent is not None else ""),
                        "muted",
                    ),
                )
            )
        if host.wall_seconds is not None:
            out.append((3, (clock_text(host.wall_seconds), "text")))
        return out

    @staticmethod
    def _fitting_ends(
        left: list[tuple[int, Piece]], right: list[tuple[int, Piece]], width: int
    ) -> tuple[Line, Line]:
        """Both ends without what does not fit, the highest numbers gone first."""
        while True:
            pieces_left = [piece for _, piece in left]
            pieces_right: Line = []
            for _, piece in right:
                pieces_right += [(" · ", "faint"), piece] if pieces_right else [piece]
            pieces_right.append((" ", "text"))
            if styled.cells(pieces_left) + styled.cells(pieces_right) + 1 <= width or not (
                left or right
            ):
                return pieces_left, pieces_right
            worst = max([*left, *right], key=lambda entry: entry[0])
            (left if worst in left else right).remove(worst)


def found_pieces(found: Sequence[int], glyphs: Glyphs) -> Line:
    """Return the marks and numbers of the problems and of the warnings that the doctor found.

    A number that is 0 is not written. What else is counted in ``found`` is left out.
    """
    out: Line = []
    for number, glyph, token in zip(
        found[:2], (glyphs.bad, glyphs.warn), ("bad", "warn"), strict=True
    ):
        out += [(" ", "text"), (f"{glyph}{number}", token)] if number else []
    return out


def ended_text(jobs: Sequence[EndedJob], width: int) -> str:
    """Return how many jobs ended badly in the last day, and how where there is room for it."""
    from ...model.ended_jobs import brief_text, number_text  # what a start does not wait for

    texts = brief_text(jobs), brief_text(jobs, False), number_text(jobs)
    fits = (text for text in texts if text_cells(text) <= width // ENDED_SHARE)
    return next(fits, number_text(jobs, False))


def short_model(name: str | None) -> str:
    """Return a model without its maker's name, which says nothing here: ``H200``."""
    words = (name or "GPU").replace("NVIDIA", "").replace("GeForce", "").split()
    return " ".join(words) or "GPU"
