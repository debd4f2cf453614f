"""Real notebooks are executed by a real kernel."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.fakes.program import python

pytestmark = [
    pytest.mark.slow,
    # Imported here ipykernel would make every test of this process one in a notebook, and nbclient
    # is imported when a test needs it: each worker reads this file.
    pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in ("ipykernel", "nbclient")),
        reason="ipykernel or nbclient is not installed (the extra dev)",
    ),
]


def executed(*sources: str):
    """Return the cells after a fresh kernel has run them, one after another."""
    import nbclient
    import nbformat  # comes with nbclient

    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext gpuscope", *sources)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=120, allow_errors=True).execute()
    assert not notebook.cells[0].outputs
    return notebook.cells[1:]


def shown(cell, form: str = "text/plain") -> list[str]:
    """What a cell displays, but for its result."""
    return [one["data"][form] for one in cell.outputs if one.output_type == "display_data"]


def test_a_look_and_measured_cells_without_torch():
    look, kept, awaited, failing, timed, wrong, after = executed(
        "%gpuscope",
        "%%gpuscope\nkept = bytearray(64 << 20)\nlen(kept)",
        "%%gpuscope\nimport asyncio\nawait asyncio.sleep(0)\n'waited'",
        "%%gpuscope\n\n1 / 0",
        "%%gpuscope\n%%timeit -n1 -r1\npass",
        "%%gpuscope --nonsense\nran = True",
        "ran",
    )
    [text] = shown(look)
    assert "torch is not imported here" in text
    assert re.search(r"This check took .* of processor\s+time in this process", text)
    assert '<div role="region" aria-label="gpuscope"' in shown(look, "text/html")[0]
    [text] = shown(kept)
    assert re.search(r"process memory .*\+6\d\.\d MiB", text), text
    assert "torch is not imported, so only the process's memory was measured" in text
    results = [one["data"]["text/plain"] for one in kept.outputs + awaited.outputs
               if one.output_type == "execute_result"]  # fmt: skip
    assert results == [str(64 << 20), "'waited'"]
    assert len(shown(awaited)) == 1
    error = next(one for one in failing.outputs if one.output_type == "error")
    assert error.ename == "ZeroDivisionError"
    assert "line 3" in re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback))
    assert "This cell took" in shown(failing)[0]
    assert any("per loop" in one.get("text", "") for one in timed.outputs)
    assert "This cell took" in shown(timed)[0]
    assert "The cell runs without being measured" in shown(wrong)[0]
    assert after.outputs[0]["data"]["text/plain"] == "True"


TRAINING = """
import torch
model = torch.nn.Linear(512, 512)
optimizer = torch.optim.AdamW(model.parameters())
def step():
    model(torch.randn(8, 512)).sum().backward(); optimizer.step(); optimizer.zero_grad()
for _ in range(200):
    step()
"""


def test_a_training_on_the_cpu_and_a_live_look_that_the_next_cell_ends():
    measured, looked, live, after, last = executed(
        f"%%gpuscope --lines\n{TRAINING}",
        "%gpuscope",
        # the thread of the look has its first answer before the next cell begins
        "%gpuscope --live 300\n"
        "import threading\n"
        "extension = get_ipython()._gpuscope_extension\n"
        "look, answered = extension._live, threading.Event()\n"
        "show = look._show\n"
        "look._show = lambda shown: (show(shown), answered.set())\n"
        "answered.wait(60)",
        "look.join(60)\nlook._thread.is_alive()",
        "%unload_ext gpuscope\n%gpuscope",
    )
    [text] = shown(measured)
    assert "No lines: there is no CUDA allocator to ask" in text
    assert "torch keeps allocator statistics for CUDA only" in text
    [text] = shown(looked)
    assert re.search(r"parameters +1\.00 MiB", text), text
    assert re.search(r"optimizer state +2\.0\d MiB", text), text
    [text] = shown(live)
    assert "No longer live: the next cell started" in text
    assert re.search(r"\d updates? took .* in this process", text.replace("\n", " "))
    assert "parameters" in text, "the last picture stays"
    assert after.outputs[0]["data"]["text/plain"] == "False"
    assert any("not found" in str(one) for one in last.outputs)


def test_a_look_that_fails_is_told_and_the_notebook_goes_on():
    broken, after = executed(
        "import sys\nsys.executable = '/bin/false'\n%gpuscope",
        "1 + 1",
    )
    assert "The check gave no answer" in shown(broken)[0]
    assert after.outputs[0]["data"]["text/plain"] == "2"


def test_a_terminal_shows_plain_text():
    pytest.importorskip("IPython", reason="IPython is not installed (the extra dev)")
    typed = "%load_ext gpuscope\n%gpuscope --live\n%%gpuscope\na = 1\n\n\n"
    done = python("-m", "IPython", "--simple-prompt", "--colors=NoColor", input=typed)
    assert "A terminal's output cannot be updated, so this is one reading" in done.stdout
    assert "torch is not imported here" in done.stdout
    assert "This cell took" in done.stdout
    assert "<div" not in done.stdout


@pytest.mark.gpu
def test_a_cell_on_cuda_is_measured_to_the_byte_and_told_by_line():
    first, kept, freed, looked = executed(
        "import torch\nx = torch.ones(1, device='cuda')",
        "%%gpuscope --lines\nkept = torch.empty(64 << 20, dtype=torch.uint8, device='cuda')",
        "%%gpuscope\ny = torch.empty(128 << 20, dtype=torch.uint8, device='cuda')\ndel y",
        "%gpuscope",
    )
    assert not first.outputs
    [text] = shown(kept)
    assert re.search(r"allocated +512 B +64\.0 MiB +\+64\.0 MiB +64\.0 MiB", text), text
    assert re.search(r"Cell In\[\d+\]:2 .* 64\.0 MiB +1\b", text), text
    assert "CUDA was synchronised once before the cell" in text
    [text] = shown(freed)
    assert re.search(r"allocated +64\.0 MiB +64\.0 MiB +0 B +192 MiB", text), text
    [text] = shown(looked)
    assert "used (= nvidia-smi)" in text
    assert re.search(r"allocated +64\.0 MiB", text), text
