"""``gpuscope doctor`` judges another host's environment.

The findings are the same as there, from a real agent on another library; and what an old or hostile
agent answers instead is refused.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuscope.agent import environment_requests
from gpuscope.cli.commands.doctor import remote_environment
from gpuscope.wire import frames
from gpuscope.wire.codec import encode
from gpuscope.wire.environment import Facts
from tests.fakes import pythons, shim
from tests.fakes.program import program

ROOT = Path(__file__).parents[2]
VARIABLES = {
    "CUDA_VISIBLE_DEVICES": "0,9",
    "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:1",
    "NCCL_BLOCKING_WAIT": "1",
    "CUDA_LAUNCH_BLOCKING": "1",
    "NCCL_DEBUG": "TRACE",
    "MY_TOKEN": "secret-1",
}
ANSWERS = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from gpuscope.wire.codec import decode, encode
from gpuscope.wire.frames import *
source = sys.stdin.buffer
source.readline()
head = json.loads(source.readline())
source.read(head["bytes"])
os.write(1, b"\\n\\x1egpuscope " + head["nonce"].encode() + b"\\n")
for frame in (
    Hello(pid=1, boot="b", hz=2.0, t=1.0, m=1, host="far", requests=["environment"], cols={{"h": ["cpu_percent"]}}),
    Def(HOST_ID, host=HostDef()), Sample(1, 10**9, h=[[HOST_ID, 1.0]]),
):
    os.write(1, encode(frame))
answers = {{
    "nothing": {{"environment": {{}}}},
    "types": {{"facts": {{"devices": [{{"index": "first"}}], "host": 7}}}},
    "evil": {{"facts": {{"driver_version": "580\\x1b]52;c;QQ\\x07\\u202e", "unheard": "of",
              "devices": [{{"index": 0, "name": "H\\x9b2J", "lost": "GPU is lost\\x1b[2J\\u202e"}}]}}}},
}}
for line in source:
    frame = decode(line)
    if isinstance(frame, Request):
        if sys.argv[1] == "refuses":
            os.write(1, encode(Error(frame.id, "failed", "gathering it failed: ImportError: no resource\\x1b[2J")))
        else:
            os.write(1, encode(Result(frame.id, answers[sys.argv[1]])))
"""  # noqa: E501


def doctor(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return program("doctor", "--json", *words, env={**os.environ, **env})


@pytest.mark.slow
def test_findings_and_document_are_those_of_the_host_itself_and_name_it():
    env = {**shim.environment(gpus=4, lost=2), **VARIABLES, "VIRTUAL_ENV": sys.prefix}
    here = json.loads(doctor(**env).stdout)
    done = doctor("--via", "env", **env)
    there = json.loads(done.stdout)
    host = os.uname().nodename
    assert {"gpu-health", "visible-devices", "allocator-config"} <= {
        one["pitfall"] for one in here["findings"]
    }
    far = [
        judged(one, f"{host}, ", host) for one in there["findings"] if one["where"].startswith(host)
    ]
    causes = {one[1] for one in far} | {
        one["cause"] for one in here["findings"] if "environment." in one["cause"]
    }
    same = [judged(one) for one in here["findings"] if one["cause"] in causes]
    assert sorted(far, key=repr) == sorted(same, key=repr)
    assert len(far) >= 5
    assert set(there) == set(here)
    assert f"{host}: 4 GPUs" in there["examined"]
    assert there["exit_code"] == done.returncode == here["exit_code"] == 2


def judged(finding: dict[str, Any], prefix: str = "", alone: str = "") -> tuple[object, ...]:
    """Return all of a finding but its readings, which move from look to look.

    ``where`` comes without the host's name.
    """
    where = finding["where"]
    where = (
        None if where == alone and alone else where[len(prefix) :] if where and prefix else where
    )
    sources = [one["source"] for one in finding["evidence"]]
    return (
        finding["pitfall"],
        finding["cause"],
        finding["severity"],
        finding["confidence"],
        where,
        sources,
        (str(finding["fixes"]), finding["verify"]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("minor", [8, 13])
def test_older_and_newer_pythons_there_gather_it_too(minor):
    binary = pythons.find_or_skip(minor)
    done = doctor("--via", "env", "--remote-python", binary, "--torch", **VARIABLES)
    document = json.loads(done.stdout)
    assert "allocator-config" in {one["pitfall"] for one in document["findings"]}, document
    assert not [one for one in document["problems"] if "could not be examined" in one["reason"]]


def test_no_other_variable_leaves_the_host(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    result = environment_requests.answer(frames.Request("environment", 1, {"of": "host"}, 5.0))
    assert isinstance(result, frames.Result), result
    line = encode(result).decode()
    assert "secret-1" not in line
    facts = remote_environment.facts_of(json.loads(line)["value"])
    kept = {name: value for name, value in VARIABLES.items() if name != "MY_TOKEN"}
    assert {name: facts.environment.get(name) for name in kept} == kept
    assert facts.host.memory_total_bytes
    assert facts.host.allowed_cpus == os.sched_getaffinity(0)


def test_every_variable_that_a_rule_asks_for_is_allowed():
    import re

    asked = set()
    for path in (ROOT / "gpuscope" / "doctor").glob("environment_*.py"):
        asked |= set(re.findall(r"environment(?:\.get\(|\[)\"(\w+)\"", path.read_text()))
        asked |= set(
            re.findall(
                r"\"((?:NCCL|TORCH_NCCL|GLOO|PYTORCH|OMP|CUDA)_[A-Z_0-9]+)\"", path.read_text()
            )
        )
    assert len(asked) > 15
    assert asked <= environment_requests.VARIABLES, asked - environment_requests.VARIABLES


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    path = tmp_path_factory.mktemp("far") / "agent.py"
    path.write_text(ANSWERS)
    return lambda mode: f"--via={shlex.quote(sys.executable)} {path} {mode}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("nothing", "its answer is malformed"),
        ("types", "its answer is malformed"),
        ("refuses", "gathering it failed: ImportError: no resource"),
    ],
)
def test_what_could_not_be_had_is_said(agent, mode, why):
    done = doctor("--timeout=1", agent(mode))
    document = json.loads(done.stdout)
    (problem,) = [
        one["reason"] for one in document["problems"] if "could not be examined" in one["reason"]
    ]
    assert problem.startswith("far: its environment (driver, host, torch) could not be examined: ")
    assert why in problem
    assert (done.returncode, document["exit_code"]) == (3, 3)
    assert "\x1b" not in done.stdout + done.stderr


def test_what_is_nested_too_deeply_is_refused():
    deep: list[object] = []
    for _ in range(1000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested too deeply"):
        remote_environment.facts_of({"facts": {"devices": deep}})


def test_what_a_hostile_agent_tells_is_made_harmless(agent):
    done = doctor("--timeout=1", agent("evil"))
    document = json.loads(done.stdout)
    assert [one["pitfall"] for one in document["findings"]], document
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & {
        char for text in strings(document) for char in text
    }


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return strings(list(value.values()))
    if isinstance(value, list):
        return [text for one in value for text in strings(one)]
    return [value] if isinstance(value, str) else []


def test_facts_come_back_as_they_were():
    from gpuscope.wire.environment import Device, Host, Owner, Path, Xid

    facts = Facts(
        devices=(
            Device(0, "GPU-a", capability=(9, 0), owners=(Owner(7, None),), cpus=frozenset((1, 2))),
        ),
        host=Host(allowed_cpus=frozenset((0, 5)), infiniband=("mlx5_0",)),
        requires=(("a", "1"),),
        xids=(Xid("0:1", 79, 2),),
        paths=(Path(0, 1, nvlink=True),),
        why={"build": "none"},
    )
    line = encode(frames.Result(1, {"facts": environment_requests.plain(facts)}))
    assert remote_environment.facts_of(json.loads(line)["value"]) == facts
