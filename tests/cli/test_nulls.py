"""Every null in a document of ``devices`` or ``ps`` has a row that says why.

That holds whatever the driver and probes tell.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
from contextlib import ExitStack

import pytest

from gpuscope.cli.commands.devices import verb as devices_verb
from gpuscope.cli.commands.ps import verb as ps_verb
from gpuscope.cli.local_look import look
from tests.fakes import probe_process
from tests.fakes.nvml import FakeNvml, FakeProcess

NONE = re.compile(
    r"problems\[\d+\]\.device|processes\[\d+\]\.(container|pod|slurm_job|loss_not_finite|trainer)"
    r"|cuda_order\[\d+\]\.(rank|visible_devices|device_order|reason)"
)
"""Where null is an answer: there is none."""
NOBODY = 4194303


def nulls(value, path=""):
    if value is None:
        yield path
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from nulls(one, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from nulls(one, f"{path}[{index}]")


def plain(fake, stack):
    pass


def lost(fake, stack):
    fake.lose(1)


def no_driver(fake, stack):
    fake.fail("nvmlInitWithFlags", None, "DriverNotLoaded")


def hung(fake, stack):
    stack.enter_context(fake.hang("nvmlDeviceGetPowerUsage", 1))


def refused(fake, stack):
    for call in (
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetName",
    ):
        fake.fail(call, 1, "NoPermission")


def strangers(fake, stack):
    fake.processes += [FakeProcess(NOBODY, used=None, gpu=0), FakeProcess(1, used=1 << 30, gpu=0)]


@pytest.mark.parametrize("told", [plain, lost, no_driver, hung, refused, strangers])
@pytest.mark.parametrize(
    ("verb", "words"), [(devices_verb, ["--holders"]), (ps_verb, [])], ids=["devices", "ps"]
)
def test_every_null_says_why(told, verb, words, tmp_path, capsys):
    sockets = probe_process.make_directory(tmp_path / "sockets")
    parser = argparse.ArgumentParser()
    verb.add_arguments(parser)
    args = parser.parse_args(["--json", "--timeout", "1", *words])
    with ExitStack() as stack:
        fake = FakeNvml(gpus=2, processes=[FakeProcess(os.getpid(), used=5 << 30, gpu=1)])
        if told is plain and verb is ps_verb:
            mute = stack.enter_context(probe_process.start(sockets, "mute"))
            good = stack.enter_context(probe_process.start(sockets))
            fake.processes += [
                FakeProcess(mute.pid, used=1, gpu=0),
                FakeProcess(good.pid, used=2, gpu=1),
            ]
        told(fake, stack)
        stack.enter_context(fake.install())
        verb.run(args, functools.partial(look, directories=[str(sockets)]))
    document = json.loads(capsys.readouterr().out)
    rows = {row["path"]: row for row in document["unknown"]}
    assert all(row["code"] and row["reason"] for row in rows.values())
    assert {path for path in nulls(document) if not NONE.fullmatch(path)} <= rows.keys()
