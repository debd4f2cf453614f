"""What ``gpuscope run --on-call`` sets, and that a run which dies leaves it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.attach import on_call, run
from gpuscope.doctor import table
from gpuscope.doctor.dead.collect import read_job
from gpuscope.doctor.dead.first_failure import judge
from gpuscope.errors import UsageError
from gpuscope.process import flight_settings
from tests.fakes.forked_scripts import free_port
from tests.fakes.probe_client import ROOT, environment
from tests.fakes.program import python

SCRIPT = "import os, sys; print('variables', {n: os.environ.get(n) for n in sys.argv[1:]})"


def with_torch(prefix: Path, version: str) -> str:
    """Return the program of an environment that has this version of torch."""
    folder = prefix / "lib" / "python3.11" / "site-packages" / "torch"
    folder.mkdir(parents=True)
    (folder / "version.py").write_text(f"__version__ = '{version}'\n")
    return str(prefix / "bin" / "python")


def gpuscope_run(*words: str, cwd: Path, **more: str | None) -> subprocess.CompletedProcess[str]:
    starter = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from gpuscope.cli.commands.run "
    starter += "import main; sys.exit(main(sys.argv[1:]))"
    env = environment(VIRTUAL_ENV=sys.prefix, CONDA_PREFIX=None, **more)
    return python("-c", starter, *words, env=env, cwd=cwd)


def test_the_names_are_those_that_the_runs_torch_knows(tmp_path):
    new = with_torch(tmp_path / "new", "2.13.0+cpu")
    old = with_torch(tmp_path / "old", "2.8.1")
    for program, size, dump in (
        (new, "TORCH_FR_BUFFER_SIZE", "TORCH_FR_DUMP_TEMP_FILE"),
        (old, "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
        ("/nowhere/bin/python", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"),
    ):
        env, lines = on_call.prepare([program], {}, str(tmp_path / "left"))
        assert env == {
            size: "2000",
            "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
            dump: f"{tmp_path}/left/nccl_trace_rank_",
            "PYTHONFAULTHANDLER": "1",
            "PET_LOG_DIR": f"{tmp_path}/left/torchrun",
        }
        assert all(f"{name}={value}" in lines[1] for name, value in env.items())


def test_nothing_that_the_user_set_is_changed_under_either_name(tmp_path):
    program = with_torch(tmp_path, "2.13.0")
    own = {
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "0",
        "TORCH_FR_DUMP_TEMP_FILE": "/scratch/fr_",
        "PYTHONFAULTHANDLER": "",
        "OTHER": "1",
    }
    env, lines = on_call.prepare([program], own, str(tmp_path / "left"))
    assert {name: env[name] for name in own} == own
    assert set(env) - set(own) == {"TORCH_NCCL_DUMP_ON_TIMEOUT", "PET_LOG_DIR"}
    kept = "TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_FR_DUMP_TEMP_FILE PYTHONFAULTHANDLER"
    assert lines[1].endswith(f"left as they are: {kept}")


def test_each_task_of_srun_gets_an_error_file_of_its_own(tmp_path):
    env, _ = on_call.prepare(["python"], {"SLURM_PROCID": "3"}, str(tmp_path))
    assert env["TORCHELASTIC_ERROR_FILE"].startswith(f"{tmp_path}/error_")
    assert str(os.getpid()) in env["TORCHELASTIC_ERROR_FILE"]


def test_a_folder_that_cannot_be_made_stops_nothing_and_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    env, lines = on_call.prepare(["python"], {}, str(tmp_path / "file" / "left"))
    assert set(env) == {
        "TORCH_NCCL_TRACE_BUFFER_SIZE",
        "TORCH_NCCL_DUMP_ON_TIMEOUT",
        "PYTHONFAULTHANDLER",
    }
    assert "without a folder" in lines[0]
    assert "Not a directory" in lines[0]


def test_the_words_decide_before_the_settings_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    env = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "4211"}

    def folder(words: list[str], on: bool = False) -> str | None:
        found = run.plan([*words, "train.py"], env, on)[1].get("PET_LOG_DIR")
        return None if found is None else os.path.relpath(os.path.dirname(found))

    assert folder([]) is None
    assert folder(["--on-call"]) == folder([], on=True) == "gpuscope-on-call/4211"
    assert folder(["--track", "--on-call=left"]) == "left"
    assert folder(["--no-on-call"], on=True) is None
    with pytest.raises(UsageError, match="needs a folder"):
        folder(["--on-call="])
    Path("logs").mkdir()
    for place in ("logs", "elsewhere/left"):
        with pytest.raises(UsageError, match="follows an equals sign") as caught:
            folder(["--on-call", place])
        assert caught.value.next == f"gpuscope run --on-call={place} train.py"


def test_a_crash_of_native_code_leaves_a_stack_and_its_signal(tmp_path):
    script = "import ctypes\ndef tokenize():\n    ctypes.string_at(1)\ntokenize()\n"
    (tmp_path / "train.py").write_text(script)
    done = gpuscope_run("--on-call", "train.py", cwd=tmp_path)
    assert done.returncode == -signal.SIGSEGV
    assert "gpuscope: on call" in done.stderr
    assert 'train.py", line 3 in tokenize' in done.stderr


def test_a_line_in_the_config_file_does_it_for_each_run(tmp_path):
    (tmp_path / "gpuscope").mkdir()
    (tmp_path / "gpuscope" / "config.toml").write_text("on_call = true\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ("train.py", "PYTHONFAULTHANDLER")
    home = str(tmp_path)
    done = gpuscope_run(*words, cwd=tmp_path, XDG_CONFIG_HOME=home, PYTHONFAULTHANDLER=None)
    assert done.stdout == "variables {'PYTHONFAULTHANDLER': '1'}\n"
    assert len(list((tmp_path / "gpuscope-on-call").iterdir())) == 1


RANKS = """
import sys, torch, torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("no such token")
    dist.all_reduce(torch.ones(1))

main()
"""


def two_ranks() -> list[str]:
    """The words that start two ranks of ranks.py here, by a port that is free."""
    words = ["--on-call=left", "--", sys.executable, "-m", "torch.distributed.run"]
    return [*words, "--nproc-per-node=2", f"--master-port={free_port()}", "ranks.py"]


@pytest.mark.slow
def test_torchrun_leaves_the_error_of_each_rank(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "ranks.py").write_text(RANKS)
    done = gpuscope_run(*two_ranks(), cwd=tmp_path)
    assert done.returncode == 1
    files = {path.parent.name: path for path in (tmp_path / "left").rglob("error.json")}
    assert "no such token" in json.loads(files["1"].read_text())["message"]["message"]
    assert "deprecated" not in done.stderr  # the names are those of this torch


NCCL = """
import datetime, os, time, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=10))
dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
if rank == 0:
    dist.all_reduce(torch.ones(1, device="cuda"))
torch.cuda.synchronize()
time.sleep(100)
"""


@pytest.mark.gpu
def test_a_timeout_of_nccl_leaves_what_each_rank_called_last(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    (tmp_path / "ranks.py").write_text(NCCL)
    # the watchdog waits four times as long for the dumps, by default a minute
    soon = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "2000"}
    done = gpuscope_run(*two_ranks(), cwd=tmp_path, **soon)
    assert done.returncode != 0
    assert sorted(path.name for path in (tmp_path / "left").glob("nccl_trace_rank_*")) == [
        "nccl_trace_rank_0",
        "nccl_trace_rank_1",
    ], done.stderr
    one = judge(read_job([tmp_path / "left"], "left")).suspects[0]
    assert one.ranks == (1,), one
    assert one.evidence[0].text.startswith("rank 0 launched all_reduce 2 at ranks.py:"), one


def test_the_pitfall_on_hangs_names_the_variables_that_are_set_here():
    texts = [fix.environment for fix in table.load()["hang-in-collective"].fixes]
    for setting in flight_settings.SETTINGS:
        assert any(f"{setting.name}=" in text for text in texts)
        assert not setting.older or any(f"{setting.older}=" in text for text in texts)
    assert not any("{" in text for text in texts)
