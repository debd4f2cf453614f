"""The dialog that says which rank of a dead job failed first."""

from __future__ import annotations

import pytest

from gpuscope.tui.doctor.dead_job_dialog import DeadJobDialog
from tests.fakes import views
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import SIZES

ERROR = 'Traceback (most recent call last):\n  File "/a/train.py", line 12, in main\n'


@pytest.fixture
def folder(tmp_path):
    for rank in range(3):
        error = "ValueError: bad" if rank == 1 else "RuntimeError: Connection closed by peer"
        (tmp_path / f"rank_{rank}.log").write_text(f"step 4 loss 0.5\n{ERROR}{error}\n")
    return tmp_path


@pytest.mark.parametrize("size", SIZES[:2])
def test_the_folder_that_is_typed_is_read_and_the_culprits_row_is_marked(folder, size):
    @in_loop
    async def run():
        app = make_app(views.training(4.0))
        async with app.run_test(size=size) as pilot:
            await until(pilot, "─ GPUs")
            app.open("dead_job")
            await until(pilot, "A dead job", "the folder of its logs", "Nothing there is changed")
            dialog = app.screen
            assert isinstance(dialog, DeadJobDialog)
            dialog._input.value = str(folder / "gone")
            await pilot.press("enter")
            await until(pilot, "There is nothing at")
            dialog._input.value = str(folder)
            await pilot.press("enter")
            await until(pilot, "Rank 1 failed first: ValueError: bad")
            await pilot.press("end")
            await until(pilot, "▶ rank 1", "ranks 0, 2", "lost a connection")
            await pilot.press("tab")
            assert dialog._input.has_focus
            await pilot.press("escape")
            await until(pilot, "─ GPUs", absent="A dead job")

    run()


@in_loop
async def test_the_palette_offers_the_folder_that_is_typed(folder):
    from gpuscope.tui.app.palette_entries import matching_entries

    app = make_app(views.training(4.0))
    async with app.run_test(size=(100, 30)) as pilot:
        await until(pilot, "─ GPUs")
        first = matching_entries(app, app.main, str(folder))[0]
        assert first.title == f"Examine the dead job in {folder}"
        assert any(one.name == "dead job" for one in matching_entries(app, app.main, "nccl hang"))
        first.run()
        await until(pilot, "Rank 1 failed first")
