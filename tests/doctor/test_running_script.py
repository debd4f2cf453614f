"""A script that is checked while it runs here: the report names the process to ask instead."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpuscope.cli.commands.doctor import running_script, targets
from gpuscope.doctor import report, table
from tests.fakes.probe_client import wait_for

FORKS = """
# torch
import os, sys, time
open(sys.argv[1] + str(os.getpid()), "w").close()
if os.fork() == 0:
    open(sys.argv[1] + str(os.getpid()), "w").close()
time.sleep(300)
"""


@pytest.fixture
def start(tmp_path):
    """Starts a script, which forks, with these words before it."""
    script, begun = tmp_path / "train.py", tmp_path / "begun-"
    script.write_text(FORKS)
    children = []

    def run(*words: str, folder=tmp_path) -> int:
        before = len(list(tmp_path.glob("begun-*")))
        command = [sys.executable, *words, str(begun)]
        children.append(subprocess.Popen(command, cwd=folder, start_new_session=True))
        wait_for(lambda: len(list(tmp_path.glob("begun-*"))) == before + 2, 20.0, "both processes")
        return children[-1].pid

    yield run, script
    for name in tmp_path.glob("begun-*"):
        subprocess.run(["kill", "-9", name.name.partition("-")[2]], check=False)
    for child in children:
        child.wait()


@pytest.mark.parametrize("words", [("train.py",), ("-u", "-X", "dev", "./train.py")])
def test_a_script_that_runs_here_is_named_with_its_process_and_not_with_its_workers(start, words):
    run, script = start
    assert running_script.running(script) == []
    pid = run(*words)
    assert running_script.running(script) == [pid]
    found = targets.examine([str(script)], False, 5.0)
    assert [one.missing for one in found.abstained if "train.py runs" in one.missing] == [
        f"how train.py runs: pid {pid} runs it here now, which gpuscope doctor {pid} looks at"
    ]
    *_, last = report.lines(report.finish(found, table.load()), 0, 200)
    said = "Nothing wrong was found in the text of train.py alone. Exit code 0."
    assert last == [(said, "muted")]


def test_several_ranks_are_counted_and_another_script_of_this_name_is_not(start, tmp_path):
    run, script = start
    pids = sorted((run(str(script)), run(str(script), folder=tmp_path.parent)))
    (told,) = running_script.report(script, script.name, True).abstained
    assert told.missing.endswith(
        f"2 processes run it here now, which gpuscope doctor {pids[0]} looks at"
    )
    other = tmp_path / "other" / "train.py"
    other.parent.mkdir()
    other.write_text(FORKS)
    assert running_script.report(other, other.name, True).abstained == ()
    (told,) = running_script.report(other, other.name, False).abstained
    assert "gpuscope run " in told.missing
