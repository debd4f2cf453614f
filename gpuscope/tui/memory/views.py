"""These widgets are what the Memory tab is made of.

They are the rows of the waterfall, and the tables that ask the trainer: torch's memory summary
and bytes by module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...model.device_state import full
from ...model.fullest import peak_text
from ...model.fullest_account import rss_of
from ...model.memory_account import Account
from ...model.memory_layers import of_the_card, of_the_host
from ...model.memory_room import TIGHT_BYTES, MemoryRoom, alarm
from ...text.units import age_text, duration_text
from ..shell.keymap import key_of
from ..shell.session import Session
from ..widgets.pane import set_title
from ..widgets.table import LiveTable
from .subjects import Subject
from .tables import MODULES, SUMMARY, module_rows, summary_rows
from .waterfall import Part, WaterfallChart

if TYPE_CHECKING:
    from ...store.view import DeviceView, HostView
    from ..background.probe_queries import ProbeAnswer
    from .module_tree import Module, Tree

EVERY_SECONDS, MODULES_SECONDS = 2.0, 15.0
SUMMARY_ROWS = 32
"""Rows of a summary before it is known: all figures of a recent torch."""
OLD_SECONDS = 6.0
SOURCES = {
    "watch": "from watch(model)",
    "found in the training loop": "found in the training loop",
    "optimizers only": "from the optimizers; modules unknown",
}


def show_account(
    panel: WaterfallChart,
    host: HostView,
    subject: Subject,
    found: Account,
    now: Mapping[tuple[str, str], float],
    seconds: float,
    room: MemoryRoom | None,
    age: float | None = None,
) -> None:
    """Show the rows at the fullest moment of the last ``seconds``.

    ``now`` has what they are at this moment, by the row that they are inside and their name.
    ``room`` is what the trainer can still get, by a reading of this ``age``, None for one of now.
    """
    on_card = subject.device is not None
    rss = rss_of(host, subject.trainer)
    on_cpu = "RSS of the process" if rss is not None and found.total == rss else "tensors found"
    rows = [
        Part(
            part.name,
            part.size,
            part.token,
            bool(part.inside),
            part.about,
            now.get((part.inside, part.name)),
        )
        for part in found.parts
    ]
    panel.show(
        rows,
        Part("used (= nvidia-smi)" if on_card else on_cpu, found.total, "text"),
        of_the_card(subject.device, room.headroom_bytes if room is not None else None, age)
        if subject.device
        else of_the_host(host, rss),
        [Part(part.name, part.size, part.token, about=part.about) for part in found.beside],
        _alarm_token(subject.device, room if age is None else None),
    )
    glyphs = panel.tokens.glyphs
    legend = [
        (glyphs.fill("allocated"), "allocated", peak_text(seconds)),
        (glyphs.moment, "title", "now"),
    ]
    panel.legend(legend if now else [])


def _alarm_token(device: DeviceView | None, room: MemoryRoom | None) -> str:
    """Return the token of the share of the card and of the headroom: how near its end is."""
    kind = alarm(room) if room is not None else None
    if kind is not None:
        return f"bold {kind}"
    left = room.headroom_bytes if room is not None else None
    tight = left is not None and left < TIGHT_BYTES
    is_full = device is not None and bool(full(device.definition, device.readings))
    return "warn" if tight or is_full else "muted"


class _View:
    """A table, and the request whose answer fills it."""

    request = ""
    every_seconds = EVERY_SECONDS

    def __init__(self, session: Session, table: LiveTable) -> None:
        self.session, self.table = session, table
        self.subject: Subject | None = None

    def _args(self, subject: Subject) -> dict[str, int] | None:
        """Return the arguments of the request, None where there is nothing to ask."""
        raise NotImplementedError

    def _answer(self, subject: Subject) -> ProbeAnswer | None:
        """What is known now; asks again in the background unless the screen is frozen."""
        args = self._args(subject)
        if args is None or subject.trainer is None:
            return None
        asker = self.session.asker
        if self.session.paused_seconds is not None:
            return asker.seen(subject.trainer, self.request, args)
        return asker.latest(subject.trainer, self.request, args, self.every_seconds)

    def _why_empty(self, subject: Subject, answer: ProbeAnswer | None) -> str:
        if subject.trainer is None:
            return "no probe here. Next run: gpuscope run train.py"
        if answer is None:
            return "no allocator statistics on a CPU"
        return answer.problem or "asking the trainer …"

    @staticmethod
    def _age(answer: ProbeAnswer) -> str:
        """Said where it is old: the newest answer has an age, too."""
        age = answer.age_seconds or 0.0
        old = f" · {age_text(age)} old" if age > OLD_SECONDS else ""
        return f"{old} ({answer.problem})" if answer.problem and old else old


class SummaryView(_View):
    """The figures of ``torch.cuda.memory_summary()``, live."""

    request = "statistics"

    def __init__(self, session: Session) -> None:
        super().__init__(session, LiveTable(SUMMARY, cursor=False, id="counters", classes="panel"))
        self.table.border_title = "Memory summary"

    @property
    def rows(self) -> int:
        """Rows of the table, or what they will be."""
        return len(self.table.rows) or SUMMARY_ROWS

    def _args(self, subject: Subject) -> dict[str, int] | None:
        ordinal = subject.allocator.definition.ordinal if subject.allocator else -1
        return {"device": ordinal} if ordinal >= 0 else None

    def show(self, subject: Subject) -> None:
        """The newest answer, or why there is none."""
        from .summary import summary

        answer = self._answer(subject)
        if answer is None or answer.value is None:
            self.table.show([])
            self.table.show_empty(self._why_empty(subject, answer))
            set_title(self.table, "Memory summary")
            return
        self.table.show(summary_rows(summary(answer.value, answer.before, answer.between_seconds)))
        self.table.show_empty("this torch reports no figures")
        set_title(self.table, self._title(subject))
        basis = "current: now · peak: since the start"
        self.table.subtitle([(f"{basis} · {self._took(answer)}{self._age(answer)}", "faint")])

    def _title(self, subject: Subject) -> str:
        ordinal = subject.allocator.definition.ordinal if subject.allocator else 0
        return f"torch.cuda.memory_summary, cuda:{ordinal}"

    @staticmethod
    def _took(answer: ProbeAnswer) -> str:
        """Return how long the call took, to two digits: it is another time with every call."""
        took, copy = (answer.value or {}).get("seconds"), f"{key_of('copy')}: copy"
        if not isinstance(took, (int, float)):
            return copy
        return f"one call: {duration_text(float(f'{took:.0e}'))} · {copy}"

    def text(self, subject: Subject) -> str:
        """Return the table as text, "" before there is one."""
        from .summary import as_text, summary

        args = self._args(subject)
        if subject.trainer is None or args is None:
            return ""
        answer = self.session.asker.seen(subject.trainer, self.request, args)
        if answer.value is None:
            return ""
        stats = summary(answer.value, answer.before, answer.between_seconds)
        title = f"{self._title(subject)} · {subject.title}"
        return as_text(stats, title, answer.value)


class ModulesView(_View):
    """Parameters, gradients and optimizer state by module, as a tree."""

    request, every_seconds = "modules", MODULES_SECONDS

    def __init__(self, session: Session) -> None:
        from .module_tree import Folding

        super().__init__(session, LiveTable(MODULES, id="modules", classes="panel"))
        self.table.border_title = "Modules"
        self._folding = Folding()
        self._trees: tuple[object, Tree] | None = None

    def _args(self, subject: Subject) -> dict[str, int] | None:
        return {}

    def show(self, subject: Subject) -> None:
        """The newest tree, or why there is none."""
        self.subject = subject
        answer = self._answer(subject)
        if answer is None or answer.value is None:
            self.table.show([])
            self.table.show_empty(self._why_empty(subject, answer))
            set_title(self.table, "Modules")
            self.table.subtitle([])
            return
        tree = self._tree(answer)
        self.table.show(module_rows(tree, self._folding))
        self.table.show_empty(f"no module with tensors ({SOURCES.get(tree.source, tree.source)})")
        order = "largest first" if self._folding.by_size else "in the model's order"
        set_title(self.table, f"Modules, {order}")
        notes = [SOURCES.get(tree.source, tree.source)]
        notes += [] if tree.complete else ["deeper levels folded"]
        self.table.subtitle(
            [(f"{' · '.join(notes)}{self._age_of(answer)} · {key_of('open')}: open", "faint")]
        )

    @staticmethod
    def _age_of(answer: ProbeAnswer) -> str:
        age = answer.age_seconds or 0.0
        return f" · {age_text(age - age % 15)} old" if age >= 2 * MODULES_SECONDS else ""

    def _tree(self, answer: ProbeAnswer) -> Tree:
        """Made once for each answer."""
        from .module_tree import tree_of

        if self._trees is None or self._trees[0] is not answer.value:
            self._trees = (answer.value, tree_of(answer.value or {}))
        return self._trees[1]

    def turn(self, opened: bool | None = None) -> None:
        """Open or close the branch under the cursor; closing a leaf closes what it is in."""
        module = self._module(self.table.cursor_key)
        if module is not None and opened is False and not self._folding.is_open(module):
            parent = self._module(module.key.rpartition("/")[0])
            if parent is not None:
                self.table.move_to(parent.key)
                module = parent
        if module is not None:
            self._folding.turn(module, opened)
            self._again()

    def _module(self, key: str | None) -> Module | None:
        if self._trees is None or key is None:
            return None
        return next(
            (module for module in self._folding.shown(self._trees[1]) if module.key == key), None
        )

    def deepen(self, by: int) -> None:
        """Show one level more of everything, or one fewer."""
        if self._trees is not None:
            self._folding.deepen(by, self._trees[1])
            self._again()

    def reorder(self) -> None:
        """Largest first, or the model's own order."""
        self._folding.by_size = not self._folding.by_size
        self._again()

    def _again(self) -> None:
        if self.subject is not None:
            self.show(self.subject)
