"""The memory tab's numbers come from a real trainer through a real agent.

They come from the CPU here, and from a GPU with ``-m gpu``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from gpuscope.attach.bundle import local_agent_argv
from gpuscope.model.memory_account import account
from gpuscope.store.source import AgentSource
from gpuscope.store.store import Store
from gpuscope.store.view import AllocView, HostView, TrainerView
from gpuscope.tui.background.probe_queries import Asker, ProbeAnswer
from gpuscope.tui.memory.module_tree import tree_of
from gpuscope.tui.memory.summary import summary
from tests.fakes.probe_client import trainer
from tests.tui.pilot import in_loop

pytest.importorskip("torch")
TRAINING = """
import time, torch, gpuscope
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
gpuscope.watch(model)
x = torch.randn(256, 1024, device=device)
print("go", flush=True)
end = time.monotonic() + 120
while time.monotonic() < end:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
"""  # noqa: E501
PARAMETERS = (1024 * 4096 + 4096 + 4096 * 1024 + 1024) * 4
WAIT_SECONDS = 40.0


@contextmanager
def training(device: str) -> Iterator[int]:
    """A trainer on ``device``; its pid."""
    with trainer(f"device = {device!r}{TRAINING}", fork=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "go\n", process.stderr.read()
        yield process.pid


class Watch:
    """What the store knows of one trainer, and an asker that reaches it."""

    def __init__(self, store: Store, asker: Asker, pid: int) -> None:
        self.store, self.asker, self.pid = store, asker, pid

    @property
    def host(self) -> HostView:
        host = self.store.view().host
        assert host is not None
        return host

    @property
    def trainer(self) -> TrainerView | None:
        return next(
            (t for t in self.host.trainers if t.definition.pid == self.pid and t.gone is None), None
        )

    def allocator(self, ordinal: int) -> AllocView | None:
        trainer = self.trainer
        return (
            next((a for a in trainer.allocators if a.definition.ordinal == ordinal), None)
            if trainer
            else None
        )

    async def until(self, good: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + WAIT_SECONDS
        while not (value := good()):
            assert time.monotonic() < deadline, f"{what} never came: {self.trainer}"
            await asyncio.sleep(0.05)
        return value

    async def answered(self, name: str, **args: int) -> ProbeAnswer:
        def latest() -> ProbeAnswer | None:
            trainer = self.trainer
            answer = (
                self.asker.latest(trainer, name, args, every_seconds=0.2)
                if trainer
                else ProbeAnswer()
            )
            return answer if answer.value is not None or answer.problem else None

        found: ProbeAnswer = await self.until(latest, name)
        return found


@asynccontextmanager
async def watched(pid: int) -> AsyncIterator[Watch]:
    """A store fed by an agent of this machine."""
    store, source = Store(), AgentSource(local_agent_argv(5.0), "local", "here")
    store.add_source(source.key, source.label)
    running = asyncio.create_task(
        source.run(
            lambda frame, at: store.apply(source.key, frame, at),
            lambda link: store.set_link(source.key, link),
        )
    )
    asker = Asker(lambda: (store, source), lambda: None)
    try:
        yield Watch(store, asker, pid)
    finally:
        asker.close()
        await source.close()
        await running


@pytest.mark.slow
@in_loop
async def test_modules_of_a_real_trainer_are_exact_and_a_cpu_has_no_summary():
    with training("cpu") as pid:
        async with watched(pid) as watch:

            def known():
                found = watch.allocator(-1)
                return found is not None and found.number("optimizer_state_bytes")

            await watch.until(known, "the count")
            answer = await watch.answered("modules")
            assert answer.value is not None, answer.problem
            tree = tree_of(answer.value)
            assert (tree.source, tree.complete, tree.dropped) == ("watch", True, 0)
            assert [root.parameters for root in tree.roots] == [PARAMETERS]
            assert [child.name for child in tree.roots[0].children] == ["0", "1", "2"]
            refused = await watch.answered("statistics", device=0)
            assert refused.value is None
            assert refused.code == "unsupported"
            assert "CUDA" in refused.problem


@pytest.mark.gpu
@in_loop
async def test_the_rows_of_a_real_card_add_up_to_what_the_driver_says():
    with training("cuda:0") as pid:
        async with watched(pid) as watch:

            def counted() -> AllocView | None:
                allocator = watch.allocator(0)
                ready = (
                    allocator is not None
                    and allocator.gpu is not None
                    and allocator.number("parameter_bytes")
                )
                return allocator if ready else None

            await watch.until(counted, "the allocator of cuda:0 with its categories")
            worst = 1.0
            deadline = time.monotonic() + WAIT_SECONDS
            # a sample may fall into the first allocations
            while worst > 0.02 and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
                allocator = watch.allocator(0)
                assert allocator is not None
                device = next(d for d in watch.host.devices if d.id == allocator.gpu)
                found = account(watch.host, device, allocator)
                sizes = {part.name: part.known for part in found.parts}
                assert not any("contradict" in note for note in found.notes), found.notes
                reserved = allocator.number("reserved_bytes")
                assert sizes["allocated"] + sizes["cached"] == reserved, (
                    "exact, from one statistics call"
                )
                for whole in ("allocated", "cached"):
                    assert sum(p.known for p in found.parts if p.inside == whole) == sizes[whole]
                assert isinstance(found.total, (int, float))
                own = [
                    u
                    for u in device.uses
                    if u.process == (watch.trainer.process if watch.trainer else None)
                ]
                # a container that hides pids, or MIG
                if not own or own[0].number("used_bytes") is None:
                    assert "others and outside torch" in sizes
                    break
                assert sizes["outside torch"] > 100 << 20, "a CUDA context takes more"
                nobodys = [
                    p.known
                    for p in found.parts
                    if p.name in ("unattributed", "driver, unattributed")
                ]
                worst = sum(nobodys) / found.total
                assert abs((allocator.sampled_seconds or 0) - (device.sampled_seconds or 0)) < 5.0
            else:
                assert worst <= 0.02, f"{worst:.1%} of the card's use belongs to nobody"
            assert sizes["parameters"] == PARAMETERS
            answer = await watch.answered("statistics", device=0)
            assert answer.value is not None, answer.problem
            stats = {stat.key: stat for stat in summary(answer.value, None, None)}
            assert stats["reserved_bytes.all"].current
            assert stats["allocation.all"].peak
            assert len(stats) >= 27
