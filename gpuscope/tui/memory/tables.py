"""The two tables of the memory tab: torch's memory summary, and bytes by module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...text.styled import Line
from ...text.units import bytes_text
from ..theme import Glyphs
from ..widgets.bars import Bar
from ..widgets.table import Cell, Column, TableRow
from .module_tree import Folding, Module, Tree
from .summary import SummaryRow, figure, rate

SUMMARY = (
    Column("metric", "METRIC", 18, flex=1, most=26),
    Column("current", "CURRENT", 9, flex=1, most=12, align="right"),
    Column("peak", "PEAK", 9, flex=1, most=12, align="right"),
    Column("in_rate", "ALLOC/S", 10, flex=1, most=13, align="right", priority=1),
    Column("allocated", "ALLOCATED", 9, flex=1, most=12, align="right", priority=2),
    Column("freed", "FREED", 9, flex=1, most=12, align="right", priority=3),
    Column("out_rate", "FREED/S", 10, flex=1, most=13, align="right", priority=4),
)
MODULES = (
    Column("module", "MODULE", 18, flex=3, most=44),
    Column("kind", "CLASS", 12, flex=1, most=24, priority=2),
    Column("parameters", "PARAMS", 9, align="right"),
    Column("gradients", "GRADS", 9, align="right", priority=1),
    Column("state", "OPTIM", 9, align="right"),
    Column("total", "TOTAL", 9, align="right"),
    Column("share", "SHARE", 8, flex=2, priority=3),
)
TOKENS = (("parameters", "allocated"), ("optimizer_state", "series6"), ("gradients", "cached"))


def summary_rows(stats: Sequence[SummaryRow]) -> list[TableRow]:
    """A row a figure; those of the pools are quieter."""
    return [_summary_row(stat) for stat in stats]


def _summary_row(stat: SummaryRow) -> TableRow:
    size = stat.is_bytes
    spec = "muted" if stat.pool else "text"
    cells: dict[str, Cell] = {
        "metric": [(f"  {stat.pool}" if stat.pool else stat.name, spec)],
        "current": [(figure(stat.current, size), spec)],
    }
    # a counter that only grows has nothing else
    if stat.peak is not None or stat.allocated is not None:
        cells |= {
            "peak": [(figure(stat.peak, size), spec)],
            "allocated": [(figure(stat.allocated, size), "muted")],
            "freed": [(figure(stat.freed, size), "muted")],
            "in_rate": [(rate(stat.allocated_per_second, size), "muted")],
            "out_rate": [(rate(stat.freed_per_second, size), "muted")],
        }
    return TableRow(f"{stat.key}", cells)


@dataclass(frozen=True, slots=True)
class Branch:
    """A module's name behind its place in the tree."""

    depth: int
    state: str  # opened, closed, or "" for one without children
    name: str

    def draw(self, width: int, glyphs: Glyphs) -> Line:
        mark = getattr(glyphs, self.state) if self.state else " "
        return [
            ("  " * min(self.depth, max(width // 4, 1)), "text"),
            (f"{mark} ", "accent"),
            (self.name, "text"),
        ]


def module_rows(tree: Tree, folding: Folding) -> list[TableRow]:
    """Return the rows of modules that are on the screen.

    The bar of each shows its share of all, by what it is made of.
    """
    whole = float(tree.total)
    return [_module_row(module, folding, whole) for module in folding.shown(tree)]


def _module_row(module: Module, folding: Folding, whole: float) -> TableRow:
    state = "" if not module.children else "opened" if folding.is_open(module) else "closed"
    return TableRow(
        module.key,
        {
            "module": Branch(module.depth, state, module.name),
            "kind": [(module.kind, "muted")],
            "parameters": _size(module.parameters),
            "gradients": _size(module.gradients),
            "state": _size(module.optimizer_state),
            "total": [(bytes_text(module.total), "text")],
            "share": Bar(
                tuple((float(getattr(module, name)), token) for name, token in TOKENS),
                whole or None,
            ),
        },
    )


def _size(size: int) -> Cell:
    return [(bytes_text(size), "muted" if size else "faint")]
