"""Ranks of a job are looked at in the same moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from gpuscope.cli import look
from gpuscope.cli.watched_host import of_each
from gpuscope.store.store import Store
from tests.cli.test_why import LOOK
from tests.fakes.asked import AskedSource


def test_no_rank_is_looked_at_after_another():
    async def main() -> dict[int, tuple[Any, str]]:
        begun: list[int] = []
        all_begun = asyncio.Event()

        async def answer(args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
            begun.append(args["trainer"])
            if len(begun) == 3:
                all_begun.set()
            await asyncio.wait_for(all_begun.wait(), 20)
            return {**LOOK, "steps": args["trainer"]}

        source = AskedSource([], look=answer)
        ranks: Any = {
            rank: SimpleNamespace(
                source=source, number=rank + 5, store=Store(), trainer=SimpleNamespace(id=rank)
            )
            for rank in range(3)
        }
        return await of_each(ranks, lambda rank: look.take(rank, 20.0))

    found = asyncio.run(main())
    assert {rank: (seen.steps, why) for rank, (seen, why) in found.items()} == {
        0: (5, ""),
        1: (6, ""),
        2: (7, ""),
    }
