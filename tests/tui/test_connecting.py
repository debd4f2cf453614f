"""A host is added to a session that runs, through a real sshd."""

from __future__ import annotations

import argparse
import os
import shutil

import pytest

from gpuscope.attach import ssh_aliases
from gpuscope.store.source import AgentSource
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.hosts.connect_dialog import ConnectDialog
from gpuscope.tui.shell.session import Session
from tests.fakes import fleet, sshd, stand_ins, views
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.test_palette import type_in

WHY_NOT = sshd.why_not()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd.server(tmp_path_factory.mktemp("sshd")) as made:
        yield made


def app_beside(server: sshd.Server, path) -> tuple[GpuscopeApp, AgentSource]:
    """The app over one agent that runs, and the options of ``attach`` that reach the server."""
    local = fleet.agent(fleet.write(path, fleet.node(1, seconds=60.0, name="here")), "h1", 2.0)
    options = argparse.Namespace(ssh_command=server.ssh_command, remote_python="", via="")
    session = Session(make_source=lambda hz: local, remote_options=options)
    return GpuscopeApp(session), local


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")
@in_loop
async def test_a_host_typed_into_the_palette_is_shown_beside_the_first(server, tmp_path):
    app, local = app_beside(server, tmp_path / "node")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "● live")
        await pilot.press("colon")
        await type_in(pilot, "attach good")
        await pilot.press("enter")
        await until(pilot, "2/2", "● live", "0 Fleet")
        assert app.session.hosts is not None
        assert [source.key for source in app.session.hosts.sources][1] == "good"
        await pilot.press("f")
        await until(pilot, "1/2", "here")
        await pilot.press("0")
        await until(pilot, "2 hosts")
        app.leave()
    await local.close()


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")
@in_loop
async def test_a_bad_target_is_refused_in_words_and_nothing_else_changes(server, tmp_path):
    app, local = app_beside(server, tmp_path / "node")
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "● live")
        app.connect("slurm:nothing")
        await until(pilot, "not a Slurm job")
        assert app.session.hosts is not None
        assert len(app.session.hosts.sources) == 1
        app.leave()
    await local.close()


@pytest.fixture
def settings(server, tmp_path, monkeypatch):
    """A home whose ``~/.ssh/config`` includes that of the server, for ssh and for gpuscope."""
    home, real = tmp_path / "home", shutil.which("ssh")
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(f"Include {server.folder}/ssh_config\nHost *.far\n")
    (tmp_path / "bin").mkdir()
    # OpenSSH takes the home of the account and not $HOME, so that this one has to be named
    wrapper = tmp_path / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {real} -F "$HOME/.ssh/config" "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(ssh_aliases, "_home", lambda: str(home))
    return home


@pytest.mark.slow
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")
@in_loop
async def test_a_bare_name_of_the_ssh_configuration_is_offered_and_reached(settings, tmp_path):
    local = fleet.agent(fleet.write(tmp_path / "n", fleet.node(1, seconds=60.0)), "h1", 2.0)
    app = GpuscopeApp(Session(make_source=lambda hz: local))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "● live")
        await pilot.press("colon")
        await type_in(pilot, "goo")
        await until(pilot, "Attach to good", "a host of your ssh configuration")
        await pilot.press("enter")
        await until(pilot, "2/2", "● live", "0 Fleet")
        app.open("connect")
        shown = await until(pilot, "in ~/.ssh/config", "jumped, changed")
        assert "good" not in shown.partition("in ~/.ssh/config")[2].partition("\n")[0]
        await type_in(pilot, "jum")
        await pilot.pause()
        await pilot.press("right", "enter")
        await until(pilot, "3/3", "● live")
        assert app.session.hosts is not None
        assert [source.key for source in app.session.hosts.sources][1:] == ["good", "jumped"]
        app.leave()
    await local.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "keys", "noted"),
    [
        ("slurm:77", ["slurm:77 gpu1", "slurm:77 gpu2"], "srun --overlap --quiet --jobid 77 -w"),
        ("k8s:team/a-0", ["k8s:team/a-0"], "kubectl exec -i -n team a-0 --"),
    ],
)
@in_loop
async def test_nodes_of_a_job_and_a_pod_are_shown(target, keys, noted, tmp_path, monkeypatch):
    for name, value in stand_ins.install(tmp_path / "bin").items():
        monkeypatch.setenv(name, value)
    local = fleet.agent(fleet.write(tmp_path / "n", fleet.node(1, seconds=60.0)), "h1", 2.0)
    app = GpuscopeApp(Session(make_source=lambda hz: local))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "● live")
        app.open("connect")
        await until(pilot, "Attach to another host")
        await type_in(pilot, target)
        await pilot.press("enter")
        await until(pilot, f"/{1 + len(keys)}", "● live", "0 Fleet")
        assert app.session.hosts is not None
        assert [source.key for source in app.session.hosts.sources][1:] == keys
        assert noted in (tmp_path / "bin" / "log").read_text()
        for key in keys:
            app.look_at(key)
            await until(pilot, os.uname().nodename, "● live")
        app.leave()
    await local.close()


@in_loop
async def test_the_dialog_says_what_can_be_typed_and_why_not_here():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        app.open("connect")
        await until(pilot, "user@host", "slurm:JOB", "k8s:NAMESPACE/POD", "Not possible")
        await type_in(pilot, "me@there")
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, ConnectDialog), "it stays, and says why"
        await pilot.press("escape")
        await pilot.pause()
        assert app.screen is app.main


@in_loop
async def test_the_list_of_what_can_be_attached_to_leads_to_other_hosts():
    app = make_app(views.training(4.0))
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "─ GPUs")
        app.open("attach", None)
        await until(pilot, "o Another host")
        await pilot.press("o")
        await until(pilot, "Attach to another host", "slurm:JOB")
