"""The end of a Slurm job is read from stand-in commands.

They behave as the real ones do on their standard streams.
"""

from __future__ import annotations

import time

import pytest

from gpuscope.collect import slurm
from gpuscope.wire.frames import NOT_INITIALISED, NOT_SUPPORTED, TIMEOUT, Unknown

LINE = (
    "JobId=77 JobName=train UserId=ada(1000) StartTime={start} EndTime={end} Deadline=N/A "
    "NodeList=n[1-2]"
)


@pytest.fixture
def put(tmp_path, monkeypatch):
    """Puts stand-ins on the PATH, alone; each notes its arguments in ``NAME.said``."""
    monkeypatch.setenv("PATH", str(tmp_path))
    slurm._kept.clear()

    def put(name: str, body: str):
        path = tmp_path / name
        path.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/{name}.said\n{body}\n')
        path.chmod(0o755)
        return tmp_path / f"{name}.said"

    return put


def test_scontrol_tells_it_as_seconds_where_it_can(put):
    said = put(
        "scontrol",
        f"[ \"$SLURM_TIME_FORMAT\" = %s ] && echo '{LINE.format(start=1, end=1763671020)}'",
    )
    assert slurm.job_end("77") == 1763671020.0
    assert slurm.job_end("77") == 1763671020.0
    assert said.read_text().splitlines() == ["show job -o 77"], "asked once, then kept"


def test_a_date_is_of_this_hosts_time_zone(put):
    put("scontrol", f"echo '{LINE.format(start='x', end='2026-11-20T20:37:00')}'")
    assert slurm.job_end("77") == time.mktime((2026, 11, 20, 20, 37, 0, 0, 0, -1))


def test_squeue_helps_where_scontrol_fails(put):
    put("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    said = put("squeue", "echo 1763671020")
    assert slurm.job_end("77_3") == 1763671020.0
    assert said.read_text().strip() == "-h -j 77_3 -o %e"


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (f"echo '{LINE.format(start=1, end='Unknown')}'", NOT_INITIALISED, "no time limit"),
        (
            "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
            NOT_SUPPORTED,
            "Invalid job id",
        ),
        ("echo nonsense", NOT_SUPPORTED, "shows no end time"),
        ("exit 0", NOT_SUPPORTED, "shows no end time"),
        (
            "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done",
            NOT_SUPPORTED,
            "scontrol",
        ),
    ],
)
def test_what_is_not_told_has_a_reason(put, body, code, words):
    put("scontrol", body)
    end = slurm.job_end("77")
    assert isinstance(end, Unknown)
    assert end.code == code
    assert words in end.text


def test_a_controller_that_is_down_is_not_waited_for(put, monkeypatch):
    monkeypatch.setattr(slurm, "SECONDS", 0.2)
    put("scontrol", "exec /bin/sleep 30")
    end = slurm.job_end("77")
    assert isinstance(end, Unknown)
    assert end.code == TIMEOUT


def test_without_slurm_that_is_said(put):
    end = slurm.job_end("77")
    assert end == Unknown(NOT_SUPPORTED, "neither scontrol nor squeue is on this host's PATH")


@pytest.mark.parametrize("job", ["", "7;reboot", "-o", "../7", "7 8", "1" * 40, "$(id)"])
def test_what_is_no_number_never_reaches_a_program(put, job):
    said = put("scontrol", "echo EndTime=1763671020")
    assert isinstance(slurm.job_end(job), Unknown)
    assert not said.exists()
