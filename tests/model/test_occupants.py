"""The jobs on a GPU are named alike for every surface, and our own are none of them."""

from __future__ import annotations

from dataclasses import replace

from gpuscope.cli.commands.lab import devices as lab_verb
from gpuscope.lab.config import LabConfig
from gpuscope.model.occupants import IDLE_BYTES, UNSEEN, occupants
from gpuscope.store.view import HostView
from gpuscope.tui.runs import devices as lab_tab
from gpuscope.tui.runs.choices import DeviceChoice
from gpuscope.wire.frames import HIDDEN_BY_CONTAINER, Unknown
from tests.fakes import views


def training() -> HostView:
    return views.host_of(views.training(3.0))


def test_the_tab_and_the_verb_name_the_same_jobs():
    host, config = training(), LabConfig(parallel="ddp", nproc=3)
    tab = lab_tab.occupants(config, host, DeviceChoice("cuda"))
    verb = lab_verb.occupants_of_run(config, host, {})
    assert [(one.index, one.pid, one.user) for one in verb] == [
        (one.index, one.pid, one.user) for one in tab
    ]
    assert len(tab) == 4


def test_our_own_processes_and_idle_ones_are_no_jobs():
    host = training()
    device = host.devices[0]
    (one,) = occupants(host, device)
    assert occupants(host, device, own={one.pid}) == []
    (use,) = device.uses
    idle = replace(use, readings={**use.readings, "used_bytes": IDLE_BYTES - 1})
    assert occupants(host, replace(device, uses=(idle,))) == []


def test_a_pid_that_is_not_of_this_container_gets_no_name_of_a_process_here():
    host = training()
    hidden = Unknown(HIDDEN_BY_CONTAINER, "the driver names pids of the host")
    inside = replace(host, readings={**host.readings, "processes": hidden})
    (one,) = occupants(inside, inside.devices[0])
    assert (one.user, one.command) == ("?", UNSEEN)
