"""Say by which figure a search prefers one configuration: its speed, or what its samples cost.

Only the standard library is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...errors import UsageError
from ...text.numbers import number
from ..ledger import Entry

GOALS = ("samples", "cost")
COST_OF_SECOND = "cost_of_second"
"""The key under which a run of a search by cost holds what a second of it costs."""
JOULES_IN_KWH = 3.6e6
WATTS = "power_watts"


@dataclass(frozen=True, slots=True)
class Goal:
    """The most samples in a second, or with ``by_cost`` the most samples for what they cost.

    ``hour`` is the price of an hour of the machine and ``kwh`` that of a kilowatt-hour, None where
    none was given. Without any price the cost is the energy of the GPU.
    """

    by_cost: bool = False
    hour: float | None = None
    kwh: float | None = None

    def __post_init__(self) -> None:
        if self.by_cost and not self.by_energy and not self.hour and not self.kwh:
            raise UsageError(
                "--goal cost: with a price of 0 all settings cost the same.",
                next="--goal cost without a price    takes the settings that need least energy",
            )

    @property
    def by_energy(self) -> bool:
        """Whether the cost is the energy itself, because nothing has a price."""
        return self.by_cost and self.hour is None and self.kwh is None

    @property
    def needs_power(self) -> bool:
        """Whether the power decides, too: the price of an hour alone is the same for all runs."""
        return self.by_cost and (bool(self.kwh) or self.hour is None)

    @property
    def best(self) -> str:
        return "cheapest" if self.by_cost else "fastest"

    @property
    def better(self) -> str:
        return "cheaper" if self.by_cost else "faster"

    @property
    def worse(self) -> str:
        return "costs more" if self.by_cost else "slower"

    @property
    def times(self) -> str:
        """What a ratio of two configurations is of, after ``1.30 ×``."""
        if not self.by_cost:
            return "as fast"
        return f"as many samples for the same {'energy' if self.by_energy else 'money'}"

    def money_of_second(self, watts: float | None) -> float | None:
        """Return what a second costs, None without a price, or with an unknown power that counts"""
        if (self.hour is None and self.kwh is None) or (self.kwh and watts is None):
            return None
        return (self.hour or 0.0) / 3600 + (self.kwh or 0.0) * (watts or 0.0) / JOULES_IN_KWH

    def weighed(self, entry: Entry) -> Entry:
        """Return a run with what a second of it costs, where the runs differ in that."""
        if not self.needs_power:
            return entry
        watts = number(entry.document.get(WATTS))
        cost = watts if self.by_energy else self.money_of_second(watts)
        return replace(entry, document={**entry.document, COST_OF_SECOND: cost})

    def to_mapping(self) -> dict[str, Any]:
        return {
            "name": GOALS[self.by_cost],
            "price_of_hour": self.hour,
            "price_of_kwh": self.kwh,
        }


SPEED = Goal()


def goal_of(mapping: Any) -> Goal:
    """Return the goal of a document; that of an earlier version, which names none, is speed."""
    found = mapping if isinstance(mapping, dict) else {}
    hour, kwh = number(found.get("price_of_hour")), number(found.get("price_of_kwh"))
    try:
        return Goal(found.get("name") == "cost", hour, kwh)
    except UsageError:
        return SPEED
