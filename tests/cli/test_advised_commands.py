"""The commands that the verbs advise for real trainings do what their sentences promise."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.probe_client import wait_for

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
COMMAND = re.compile(r"gpuscope (?:why|doctor|wait|snapshot|tune)\b[^\n]*?(?=   |$)", re.MULTILINE)
"""As it is to be copied: what it does stands behind three blanks or more."""
BEGIN = "import time, torch\nmodel = torch.nn.Linear(16, 4)\n"
STEP = """
    optimizer.zero_grad()
    model(torch.randn(8, 16)).sum().backward()
    optimizer.step()
"""
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), 1e-3)\n"
SCRIPTS = {
    "advised_hang.py": f"""{BEGIN}{OPTIMIZER}
def load(step):
    time.sleep(600 if step > 100 else 0.01)
for step in range(10_000):
    load(step){STEP}""",
    "advised_healthy.py": f"{BEGIN}{OPTIMIZER}\nwhile True:{STEP}    time.sleep(0.01)\n",
    "advised_straggler.py": f"""{BEGIN}
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
model = torch.nn.parallel.DistributedDataParallel(model)
{OPTIMIZER}
def tokenize():
    time.sleep(0.04 * rank)
while True:
    tokenize(){STEP}""",
}


def told(*words: str, folder: Path) -> tuple[int, str]:
    """Run gpuscope in a folder: its exit code, and what it writes, on one line."""
    command = [sys.executable, "-m", "gpuscope", *words]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def run_advised(command: str, folder: Path) -> tuple[int, str]:
    """Do what a reader does who copies a command of gpuscope."""
    return told(*command.split()[1:], folder=folder)


@pytest.fixture(scope="module")
def trainings(tmp_path_factory) -> Iterator[Path]:
    """The folder of the three scripts, all of which train there."""
    folder = tmp_path_factory.mktemp("project")
    with ExitStack() as stack:
        running = []
        for name, text in SCRIPTS.items():
            (folder / name).write_text(text)
            launch = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=29633"]
            words = [*(launch if name == "advised_straggler.py" else []), name]
            process = subprocess.Popen(
                [sys.executable, "-m", "gpuscope", "run", *words],
                cwd=folder,
                env=ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
            running.append(process)
        wait_for(
            lambda: "Stalled" in told("why", "advised_hang.py", "--no-look", folder=folder)[1],
            90,
            "a hang",
        )
        wait_for(
            lambda: (
                "others wait" in told("why", "advised_straggler.py", "--no-look", folder=folder)[1]
            ),
            90,
            "a rank that is late",
        )
        yield folder


@pytest.mark.parametrize("elsewhere", [True, False], ids=["elsewhere", "where its script lies"])
def test_what_is_advised_of_a_hang_tells_of_the_hang(trainings, tmp_path, elsewhere):
    folder = tmp_path if elsewhere else trainings
    code, out = told("why", "advised_hang.py", "--no-look", folder=folder)
    assert code == 1
    (advised,) = re.findall(r"Evidence and other fixes: (gpuscope .*)", out)
    code, out = run_advised(advised, folder)
    assert code == 2
    assert "Hang: no step for" in out
    for command in COMMAND.findall(out):
        code, again = run_advised(command, folder)
        assert code in ((0, 2) if "--explain" in command else (2,)), command
        assert ("Hang: no step for" in again) != ("--explain" in command), command


def test_what_is_advised_of_a_straggler_tells_of_that_rank(trainings, tmp_path):
    code, out = told("why", "advised_straggler.py", "--no-look", folder=tmp_path)
    assert code == 1
    commands = COMMAND.findall(out)
    assert commands
    for command in commands:
        code, again = run_advised(command, tmp_path)
        assert code == 1, command
        assert "The others wait for rank 1" in again, command


def test_what_is_advised_of_a_healthy_training_asks_it_again(trainings, tmp_path):
    _, out = told("why", "advised_healthy.py", "--no-look", folder=tmp_path)
    for command in COMMAND.findall(out):
        code, again = run_advised(command, tmp_path)
        assert code in (0, 1), command
        assert again.startswith("advised_healthy.py"), command


def test_jobs_to_choose_from_are_offered_by_what_chooses_them(trainings, tmp_path):
    _, out = told("why", folder=tmp_path)
    offered = re.findall(r"^  (gpuscope why \d+) +\((\w+\.py)", out, re.MULTILINE)
    assert {name for _, name in offered} >= set(SCRIPTS)
    for command, name in offered:
        if name in SCRIPTS:
            assert run_advised(f"{command} --no-look", tmp_path)[1].startswith(name), command
