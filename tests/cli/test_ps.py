"""``gpuscope ps`` runs on a fake driver and real probe sockets.

The tests see the document, the exit code and the text.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import time
from dataclasses import replace

import pytest

from gpuscope.agent import host_workers
from gpuscope.agent.oneshot import TRAINERS_SECONDS
from gpuscope.cli import output
from gpuscope.cli import watch as cli_watch
from gpuscope.cli.commands.ps import document as ps_document
from gpuscope.cli.commands.ps import text as ps_text
from gpuscope.cli.commands.ps import verb as ps_verb
from gpuscope.cli.local_look import look
from gpuscope.cli.main import perform
from gpuscope.collect import processes, trainers
from gpuscope.text import width
from gpuscope.wire.frames import Unknown
from tests.fakes import jobs, probe_process, views
from tests.fakes.nvml import FakeNvml, FakeProcess


@pytest.fixture
def sockets(tmp_path):
    return probe_process.make_directory(tmp_path / "sockets")


@pytest.fixture
def fake():
    fake = FakeNvml(gpus=2, processes=[FakeProcess(os.getpid(), used=5 << 30, gpu=1)])
    with fake.install():
        yield fake


def run(capsys, sockets, *words):
    parser = argparse.ArgumentParser()
    ps_verb.add_arguments(parser)
    code = ps_verb.run(
        parser.parse_args(words), functools.partial(look, directories=[str(sockets)])
    )
    return code, capsys.readouterr().out


def run_json(capsys, sockets, *words):
    code, out = run(capsys, sockets, "--json", *words)
    document = json.loads(out)
    assert document["exit_code"] == code
    for process in document["processes"]:
        assert {"pid", "start_time", "user", "command", "devices", "trainer"} <= process.keys()
        for device in process["devices"]:
            assert device.keys() == {"uuid", "index", "state", "used_bytes", "sm_percent"}
            assert device["state"].keys() == {"kind", "word", "reason"}
        if process["trainer"] is not None:
            wanted = {
                "rank",
                "world_size",
                "job",
                "step",
                "step_seconds",
                "allocated_bytes",
                "reserved_bytes",
            }
            assert wanted <= process["trainer"].keys()
    assert all(row.keys() == {"path", "code", "reason"} for row in document["unknown"])
    return code, document


def test_no_trainer_is_denied_before_it_was_looked_for(fake, sockets, capsys, monkeypatch):
    """No trainer is denied before it was looked for.

    On a busy machine the thread that searches comes late: until then nobody knows whether there is
    a probe.
    """
    usual = trainers.Probes.scan

    def scan(self, now):
        if not self.scans:
            time.sleep(1.5 * TRAINERS_SECONDS)
        usual(self, now)

    monkeypatch.setattr(trainers.Probes, "scan", scan)
    with probe_process.start(sockets) as one:
        fake.processes.append(FakeProcess(one.pid, used=9 << 30, gpu=0))
        _, document = run_json(capsys, sockets)
        assert {p["pid"] for p in document["processes"] if p["trainer"]} == {one.pid}


def test_processes_and_trainers_ranks_of_one_job_together(fake, sockets, capsys):
    with probe_process.start(sockets) as one, probe_process.start(sockets) as two:
        fake.processes.append(FakeProcess(one.pid, used=9 << 30, gpu=0, sm=61))
        code, document = run_json(capsys, sockets)
        assert code == 0
        assert [p["pid"] for p in document["processes"]] == [
            *sorted((one.pid, two.pid)),
            os.getpid(),
        ]
        trained = next(p for p in document["processes"] if p["pid"] == one.pid)
        assert trained["devices"] == [
            {"uuid": fake.gpus[0].uuid, "index": 0, "used_bytes": 9 << 30, "sm_percent": 61.0}
            | {"state": trained["devices"][0]["state"]}
        ]
        trainer = trained["trainer"]
        assert (trainer["job"], trainer["rank"], trainer["world_size"]) == ("job-1", 0, 2)
        assert trainer["step"] >= 1
        assert trainer["step_seconds"] == 0.25
        # over both devices
        assert (trainer["allocated_bytes"], trainer["reserved_bytes"]) == (2020, 3030)
        assert trainer["allocators"][0]["index"] == 0
        assert trainer["loss"] is None
        position = document["processes"].index(trained)
        why = {row["path"]: row["reason"] for row in document["unknown"]}
        assert why[f"processes[{position}].trainer.loss"] == "no progress bar"
        assert trainer["allocators"][0]["split"] is None
        missing = f"processes[{position}].trainer.allocators[0].split"
        assert why[missing] == "the probe does not send it"
        other = document["processes"][-1]
        assert other["trainer"] is None
        assert other["devices"] == [
            {"uuid": fake.gpus[1].uuid, "index": 1, "used_bytes": 5 << 30, "sm_percent": None}
            | {"state": other["devices"][0]["state"]}
        ]
        code, out = run(capsys, sockets)
        assert code == 0
        lines = out.splitlines()
        job = lines.index("train.py ×2, job job-1")
        assert all("0/2" in line for line in lines[job + 1 : job + 3])
        assert lines[job + 3] == "no job"


def test_what_reserved_consists_of_adds_up_to_it():
    unknowns = output.Unknowns()
    readings = {
        "reserved_bytes": 86,
        "allocated_bytes": 46,
        "active_bytes": 47,
        "requested_bytes": 45,
        "inactive_split_bytes": 16,
        "private_pool_idle_bytes": 5,
        "private_pool_inactive_split_bytes": 2,
    }
    found = ps_document._split(unknowns, "x.split", readings)
    assert found is not None
    assert found == {
        "live_bytes": 44,
        "rounding_bytes": 2,
        "awaiting_free_bytes": 1,
        "inactive_split_bytes": 14,
        "releasable_bytes": 20,
        "private_pool_idle_bytes": 5,
        "error_bytes": 1,
    }
    assert sum(found.values()) - found["error_bytes"] == 86
    assert not unknowns.rows


def test_a_trainer_without_any_gpu(fake, sockets, capsys):
    fake.fail("nvmlInitWithFlags", None, "DriverNotLoaded")
    with probe_process.start(sockets) as trainer:
        code, document = run_json(capsys, sockets)
        assert code == 3
        (process,) = document["processes"]
        assert (process["pid"], process["devices"]) == (trainer.pid, [])
        assert process["trainer"]["step"] >= 1
        assert "modprobe" in document["problems"][0]["reason"]
        code, out = run(capsys, sockets)
        assert code == 3
        assert str(trainer.pid) in out
        assert "modprobe" in out


def test_a_probe_that_says_nothing_does_not_hold_it(fake, sockets, capsys):
    with probe_process.start(sockets, "mute"):
        code, document = run_json(capsys, sockets)
    assert code == 0
    assert [p["pid"] for p in document["processes"]] == [os.getpid()]


def test_in_a_container_owners_are_hidden_never_absent(fake, sockets, capsys, monkeypatch):
    hidden = Unknown("hidden_by_container", "start it with --pid=host to see them")
    monkeypatch.setattr(processes, "pid_namespace_note", lambda root="/": hidden)
    with probe_process.start(sockets) as trainer:
        code, document = run_json(capsys, sockets)
        assert code == 0
        by_pid = {p["pid"]: p for p in document["processes"]}
        assert by_pid[trainer.pid]["trainer"] is not None
        # a number of the host, which happens to be ours here too: nothing of ours may be told about
        # it
        assert by_pid[os.getpid()]["command"] is None
        assert any(
            row["path"] == "processes" and "--pid=host" in row["reason"]
            for row in document["unknown"]
        )
    fake.processes = []
    _, out = run(capsys, sockets)
    assert "--pid=host" in out
    assert "no process" not in out.lower()


def test_in_a_container_whose_driver_names_our_processes_nothing_is_called_hidden(
    fake, sockets, capsys, monkeypatch
):
    hidden = Unknown("hidden_by_container", "start it with --pid=host to see them")
    monkeypatch.setattr(processes, "pid_namespace_note", lambda root="/": hidden)
    monkeypatch.setattr(processes, "holds_gpu", lambda pid, root="/": pid == os.getpid())
    code, document = run_json(capsys, sockets)
    assert code == 0
    (process,) = document["processes"]
    assert process["pid"] == os.getpid()
    assert "python" in process["command"]
    assert process["devices"]
    assert "--pid=host" not in run(capsys, sockets)[1]


def test_in_a_container_with_idle_gpus_nothing_is_called_hidden(fake, sockets, capsys, monkeypatch):
    monkeypatch.setattr(
        processes,
        "pid_namespace_note",
        lambda root="/": Unknown("hidden_by_container", "--pid=host"),
    )
    for gpu in range(len(fake.gpus)):
        fake.set(gpu, used=200 << 20)  # less than a CUDA context
    fake.processes = []
    assert "--pid=host" not in run(capsys, sockets)[1]


def test_a_hung_call_leaves_the_rest(fake, sockets, capsys):
    with (
        probe_process.start(sockets) as trainer,
        fake.hang("nvmlDeviceGetComputeRunningProcesses_v3", 1),
    ):
        code, document = run_json(capsys, sockets, "--timeout", "1")
        assert code == 3
        assert trainer.pid in [p["pid"] for p in document["processes"]]
        assert any("has not returned" in row["reason"] for row in document["problems"])


def test_nothing_here(fake, sockets, capsys):
    fake.processes = []
    code, out = run(capsys, sockets)
    assert code == 0
    assert "gpuscope run train.py" in out


def test_commands_are_cut_to_the_terminal_and_cleaned(fake, sockets, capsys, monkeypatch):
    definition = processes.describe(os.getpid())
    assert definition is not None
    definition[0].command = "train \x1b[31m" + "训练" * 300
    monkeypatch.setattr(processes, "describe", lambda pid, redact=True: definition)
    monkeypatch.setattr(host_workers, "PROCESSES_SECONDS", 1.0)
    _, out = run(capsys, sockets)
    assert "\x1b" not in out
    assert "…" in out


def test_the_steps_of_ranks_that_step_together_are_those_of_one_moment():
    host = views.host_of(jobs.ranks(2))
    first, second = host.trainers
    later = replace(second, readings={**second.readings, "step": first.readings["step"] + 3})
    job = replace(host.jobs[0], trainers=(first, later))
    host = replace(host, trainers=(first, later), jobs=(job,))
    steps = [
        one["trainer"]["step"]
        for one in ps_document.document(host, [])["processes"]
        if one["trainer"]
    ]
    assert steps == [first.readings["step"]] * 2


def test_the_text_says_where_a_trainer_stands_and_what_its_step_is_made_of():
    trainer = {
        "step_age_seconds": 48.0,
        "stall_at": "data.py:88 __getitem__",
        "stands": "stuck at data.py:88 in __getitem__",
        "phase": "eval",
        "where_time_goes": {
            "of": "step breakdown",
            "basis": "last 32 steps",
            "rows": [
                {"row": "compute", "share": 0.8},
                {"row": "input", "share": 0.196},
                {"row": "optimizer", "share": 0.004},
            ],
        },
    }
    assert ps_text._notes(trainer) == [
        "stuck at data.py:88 in __getitem__, no step for 48 s",
        "phase: eval",
    ]
    trainer["stands"] = None
    assert ps_text._notes({**trainer, "stall_at": None, "step_seconds": 0.5})[0] == (
        "no step for 48 s"
    )
    assert ps_text._notes({**trainer, "stall_at": None, "step_age_seconds": 0.2})[0] == (
        "step breakdown, last 32 steps: compute 80 % · input 20 %"
    )
    assert ps_text._notes({"stall_at": None, "phase": "train"}) == []


def test_gpus_of_a_trainer_with_the_same_state_are_one_line_below_it():
    host = views.host_of(views.training(3.0))
    result = ps_document.document(host, [])
    (first,) = [row for row in result["processes"] if (row["trainer"] or {}).get("rank") == 0]
    state = {"word": "tensor idle", "reason": "tensor cores active 2 %", "kind": "warn"}
    first["devices"] = [dict(first["devices"][0], index=index, state=state) for index in range(4)]
    told = [line for line in ps_text.text(result).splitlines() if "tensor idle" in line]
    assert told == ["          tensor idle on GPU 0-3: tensor cores active 2 %"]
    first["devices"][2]["state"] = dict(state, reason="tensor cores active 9 %")
    told = [line.strip() for line in ps_text.text(result).splitlines() if "tensor idle" in line]
    assert [line.split(":")[0] for line in told] == [
        "tensor idle on GPU 0, 1, 3",
        "tensor idle on GPU 2",
    ]


def test_columns_that_no_process_has_are_left_out():
    result = ps_document.document(views.host_of(views.training(3.0)), [])
    head = ps_text._table(result["processes"])[0].split()
    assert {"GPU", "USED", "RANK", "ALLOCATED"} <= {*head}
    for row in result["processes"]:
        row["devices"] = []
        row["trainer"] = None
    assert ps_text._table(result["processes"])[0].split() == [
        "PID", "USER", "STEP", "STEP", "TIME", "COMMAND"
    ]  # fmt: skip


def test_on_a_narrow_terminal_no_line_is_broken_within_a_word(monkeypatch):
    result = ps_document.document(views.host_of(views.training(3.0)), [])
    result["unknown"].append({"path": "processes", "code": "x", "reason": "word " * 40})
    monkeypatch.setattr(output, "terminal_width", lambda: 60)
    shown = ps_text.text(result).splitlines()
    below = [line for line in shown if line.startswith((" " * 10, "– ", "word "))]
    assert len(below) > 5
    assert all(width.cells(line) <= 60 for line in below)
    monkeypatch.setattr(output, "terminal_width", lambda: None)
    assert any(len(line) > 200 for line in ps_text.text(result).splitlines()), "whole in a pipe"


def test_a_gpu_that_is_lost_is_no_reason_for_memory_without_an_owner():
    result = ps_document.document(views.host_of(views.training(3.0)), [])
    why = (("lost", "the GPU has fallen off the bus"), ("not_visible", "a container sees none"))
    result["unknown"] += [
        {"path": f"devices[{at}].processes", "code": code, "reason": reason}
        for at, (code, reason) in enumerate(why)
    ]
    said = [line for line in ps_text.text(result).splitlines() if "has no owner here" in line]
    assert said == ["– Why some GPU memory has no owner here: a container sees none"]


def test_the_text_names_other_models_with_their_size():
    sent = ["tutor (ResNet) 14470144 B, ema (Shadow) 3221225472 B, tex", None]
    assert ps_text._notes({"allocators": [{"other_models": one} for one in sent]}) == [
        "other models, which no optimizer trains: tutor (ResNet) 13.8 MiB, ema (Shadow) 3.00 GiB, …"
    ]


def test_where_a_trainer_stands_is_in_the_document(fake, sockets, capsys):
    with probe_process.start(sockets):
        _, document = run_json(capsys, sockets)
    (trainer,) = [process["trainer"] for process in document["processes"] if process["trainer"]]
    assert {
        "stall_at",
        "phase",
        "input_seconds",
        "compute_seconds",
        "communication_seconds",
    } <= trainer.keys()


def test_the_parts_of_a_step_add_up_to_the_step_that_the_document_gives_for_them():
    missing = Unknown("not_supported", "part of compute")
    readings = {
        "step_seconds": 0.017,
        "input_seconds": 0.002,
        "h2d_seconds": missing,
        "compute_seconds": 0.019,
    }
    readings |= {"optimizer_seconds": 0.003, "communication_seconds": 0.0, "other_seconds": 0.001}
    assert ps_document._measured_step(readings) == 0.025
    unmeasured = Unknown("not_initialised", "no step has been measured yet")
    assert ps_document._measured_step({**readings, "compute_seconds": unmeasured}) is unmeasured


def test_the_step_that_parts_add_up_to_is_in_the_document_or_why_it_is_not(fake, sockets, capsys):
    with probe_process.start(sockets):
        _, document = run_json(capsys, sockets)
    (at,) = [at for at, process in enumerate(document["processes"]) if process["trainer"]]
    assert document["processes"][at]["trainer"]["measured_step_seconds"] is None
    assert f"processes[{at}].trainer.measured_step_seconds" in [
        row["path"] for row in document["unknown"]
    ]


def test_a_share_of_nothing_is_zero_only_where_the_driver_says_so(fake, sockets, capsys):
    fake.processes = [
        FakeProcess(os.getpid(), gpu=0, sm=40),
        FakeProcess(os.getppid(), gpu=0),
        FakeProcess(1, gpu=1),
    ]

    def shares():
        _, document = run_json(capsys, sockets)
        told = {
            (p["pid"], d["index"]): d["sm_percent"]
            for p in document["processes"]
            for d in p["devices"]
        }
        return told, {
            row["reason"] for row in document["unknown"] if row["path"].endswith("sm_percent")
        }

    told, why = shares()
    assert told[os.getpid(), 0] == 40.0
    assert told[os.getppid(), 0] == 0.0, "beside one that the driver names it ran no kernel"
    assert told[1, 1] is None, "the GPU is busy and the driver names nobody"
    assert any("no recent sample of any process" in reason for reason in why)
    fake.set(1, utilisation=0)
    assert shares()[0][1, 1] == 0.0, "nothing runs on that GPU at all"
    fake.fail("nvmlDeviceGetProcessUtilization", 0, "NoPermission")
    told, why = shares()
    assert (told[os.getpid(), 0], told[os.getppid(), 0]) == (None, None)
    assert "nvmlDeviceGetProcessUtilization: no permission" in why
    _, out = run(capsys, sockets)
    assert "– Utilisation per process: nvmlDeviceGetProcessUtilization: no permission" in out


def test_watching_prints_a_line_per_process_and_look(fake, sockets, capsys, monkeypatch):
    fake.processes = [FakeProcess(os.getpid(), used=5 << 30, gpu=1, sm=40)]
    parser = argparse.ArgumentParser()
    ps_verb.add_arguments(parser)
    here = functools.partial(look, directories=[str(sockets)])
    with probe_process.start(sockets) as one:
        fake.processes.append(FakeProcess(one.pid, used=9 << 30, gpu=0, sm=61))
        args = parser.parse_args(["--watch", "0.2"])
        code = cli_watch.watch(args, lambda: ps_verb.once(args, here), rounds=2)
        lines = capsys.readouterr().out.splitlines()
        assert code == 0
        assert len(lines) == 4
        trained = [line for line in lines if f" pid {one.pid} " in line]
        assert len(trained) == 2
        assert all("GPU 0 9.00 GiB sm 61 % · rank 0/2 · step " in line for line in trained)
        args.json = True
        assert cli_watch.watch(args, lambda: ps_verb.once(args, here), rounds=2) == 0
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(documents) == 2
    assert documents[0]["processes"][0]["devices"][0]["sm_percent"] == 61.0
    assert (
        perform(ps_verb.run, parser.parse_args(["--watch", "1", "somewhere"]), "gpuscope ps") == 64
    )
    assert "gpuscope record TARGET" in capsys.readouterr().err
