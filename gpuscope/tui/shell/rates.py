"""This module changes how many samples per second the sources of a session send."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..background.sources import Hosts
    from .notices import Notices

RATES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def next_rate(now: float, faster: bool) -> float | None:
    """Return the next rate that can be chosen, None where there is none."""
    if faster:
        return next((rate for rate in RATES if rate > now), None)
    return next((rate for rate in reversed(RATES) if rate < now), None)


async def ask_rate(hosts: Hosts, hz: float, notices: Notices) -> None:
    """Ask all sources for this rate, and tell what came of it."""
    answers = await asyncio.gather(
        *(source.request("rate", {"hz": hz}) for source in hosts.sources), return_exceptions=True
    )
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    if len(failed) == len(answers):
        notices.say(f"the rate stays as it is: {failed[0]}", "warn")
    else:
        notices.say(
            f"{hz:g} samples per second" + (f", not on {len(failed)} hosts" if failed else "")
        )
