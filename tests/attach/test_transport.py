"""Each way to another host gets the right argument vector.

Words arrive unharmed behind shells that take them apart.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from gpuscope.attach import bootstrap
from gpuscope.attach.targets import BadTarget, parse, parse_all
from gpuscope.attach.transport import route, through_prefix, words_to
from gpuscope.attach.transport_failures import judge
from tests.fakes import pythons, stand_ins
from tests.fakes.cases import each

NASTY = [
    "a b",
    "it's",
    'say "x"',
    "$HOME",
    "`id`",
    "a;b|c&d",
    "*",
    "\\n",
    "!!",
    "",
    "\u00e9",
    "-x",
    "(y)",
]
SHOW = [sys.executable, "-I", "-S", "-c", "import json,sys;print(json.dumps(sys.argv[1:]))", *NASTY]


@pytest.fixture
def env(tmp_path):
    return stand_ins.install(tmp_path / "bin")


def shown(words, env):
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "text", ["ada@h", "slurm:77", "slurm:77@login", "k8s:team/a-0", "k8s:team/a-0/main"]
)
def test_words_arrive_as_they_were(text, env):
    assert shown(words_to(parse(text), SHOW), env) == NASTY


@pytest.mark.parametrize(
    "via",
    [
        "sudo -n -u ada",
        "docker exec -i c",
        "srun --overlap --jobid 7 -w n --ntasks=1",
        "kubectl exec -i p -c c --",
        "ssh login",
        "ssh -p 22 -l ada login",
        "ssh -- login",
        "ssh -T -oPort=22 login",
        "ssh login srun --overlap --jobid 7",
        "ssh login ssh inner sudo -n -u ada docker exec -i c",
        "sudo -n ssh login kubectl exec -i p --",
        "docker exec -i ssh",
        "env A=1 nice",
    ],
)
def test_chains_of_prefixes(via, env):
    (target,) = parse_all([], via=via)
    assert shown(words_to(target, SHOW), env) == NASTY


def test_a_host_behind_a_prefix(env):
    (target,) = parse_all(["ada@h:77"], via="ssh bastion")
    assert shown(words_to(target, SHOW), env) == NASTY


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh", "fish", "csh", "tcsh", "ksh"])
def test_the_command_starts_the_loader_in_every_login_shell(shell):
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"no {shell} here")
    text = words_to(parse("h"), bootstrap.command(pythons.by_plain_path()))[-1]
    assert not set(text) & set("\n\\!")
    sent = b"import sys;os.write(1,b'up')\n"
    done = subprocess.run([path, "-c", text], input=sent, capture_output=True, timeout=60)
    assert done.stdout == b"up", done.stderr


def test_what_ssh_is_given():
    way = route(parse("ada@h"), ("ssh", "-F", "/x"))
    assert way.argv[:3] == ("ssh", "-F", "/x")
    assert way.argv[-3:-1] == ("--", "ada@h")
    options = dict(
        word.split("=")
        for before, word in zip(way.argv, way.argv[1:-2], strict=False)
        if before == "-o"
    )
    assert options["ClearAllForwardings"] == "yes"
    assert options["PermitLocalCommand"] == options["ForwardAgent"] == options["ForwardX11"] == "no"
    assert options["ControlMaster"] == "no"  # one that is there is used; ours would end with us
    assert "BatchMode" not in options
    assert "BatchMode=yes" in way.batch_argv
    assert way.asks
    assert not route(parse_all([], via="docker exec -i c")[0]).asks
    assert route(parse_all([], via="ssh h srun")[0]).asks
    assert "BatchMode=yes" in route(parse_all([], via="ssh h srun")[0]).batch_argv


def test_what_cannot_be_a_way_is_refused():
    with pytest.raises(BadTarget, match="needs a host"):
        through_prefix(["ssh", "-p", "22"], ["x"])
    with pytest.raises(BadTarget):
        route(parse("4242"))
    for python in ("a b", "$(x)", "-x", "a;b", "a'b", "x\ny"):
        with pytest.raises(bootstrap.BadPython):
            route(parse("h"), python=python)


@each(
    ("program", "code", "said", "kind", "again"),
    [
        ("ssh", 255, "ssh: connect to host h port 22: Connection refused", "refused", True),
        ("ssh", 255, "ssh: connect to host h port 22: Connection timed out", "timeout", True),
        (
            "ssh",
            255,
            "ssh: Could not resolve hostname h: Name or service not known",
            "unknown_host",
            False,
        ),
        ("ssh", 255, "Permission denied (publickey).", "auth", False),
        ("ssh", 255, "Received disconnect: 2: Too many authentication failures", "auth", False),
        ("ssh", 255, "Host key verification failed.", "host_key", False),
        (
            "ssh",
            255,
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "host_key_changed",
            False,
        ),
        (
            "ssh",
            255,
            "kex_exchange_identification: Connection closed by remote host",
            "closed",
            True,
        ),
        ("ssh", 255, "Bad owner or permissions on /home/x/.ssh/config", "config", False),
        ("ssh", 72, "gpuscope: no python3 found", "no_python", False),
        ("ssh", 127, "sh: 1: exec: python3: not found", "no_python", False),
        ("ssh", 76, "gpuscope: python3 there is 3.6.8", "old_python", False),
        ("sudo", 1, "sudo: a password is required", "auth", False),
        (
            "srun",
            1,
            "srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
            "job",
            False,
        ),
        ("kubectl", 1, 'Error from server (NotFound): pods "x" not found', "pod", False),
        (
            "kubectl",
            1,
            "The connection to the server localhost:8080 was refused - did you specify the right "
            "host or port?",
            "cluster",
            False,
        ),
        ("kubectl", 1, "Unable to connect to the server: dial tcp: i/o timeout", "cluster", False),
        ("docker", 1, "Error response from daemon: No such container: x", "container", False),
        (
            "docker",
            1,
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
            "daemon",
            False,
        ),
        ("ssh", 1, "Traceback", "ended", True),
        ("ssh", 255, "", "ended", True),
    ],
)
def test_an_end_is_judged(program, code, said, kind, again):
    verdict = judge(program, code, said)
    assert (verdict.kind, verdict.again) == (kind, again)
    assert verdict.text or kind == "ended"


def test_no_word_of_an_environment_is_given_on(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-of-mine")
    sent = bootstrap.preamble(2.0)
    assert b"secret-of-mine" not in sent.data
    assert "secret-of-mine" not in " ".join(route(parse("h")).argv)
    assert os.environ["HF_TOKEN"] == "secret-of-mine"
