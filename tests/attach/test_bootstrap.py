"""The agent comes through a pipe, where nothing is installed.

It works with every Python and over a disturbed pipe, and nothing stays behind.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest

from gpuscope.attach import agent_source, bootstrap, bundle
from gpuscope.wire import frames
from gpuscope.wire.codec import decode, encode
from tests.fakes import agents, pythons, shim
from tests.fakes.waiting import alive, until

PATIENCE = 30.0


def start(python: str = "", env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    words = bootstrap.command(python or pythons.by_plain_path())
    pipe = subprocess.PIPE
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, env=env, cwd="/")


def frames_behind(process, marker):
    for line in process.stdout:
        if line == marker:
            break
    for line in process.stdout:
        yield decode(line)


@pytest.mark.slow
@pytest.mark.parametrize("minor", pythons.MINORS)
def test_it_runs_under_every_python(minor):
    """It comes through the pipe, reads a driver and the host, answers, and ends when it is left."""
    python = pythons.find_or_skip(minor)
    sent = bootstrap.preamble(2.0)
    process = start(python, shim.environment(gpus=2, pid=os.getpid()))
    viewer = agents.Viewer(process.stdout.fileno(), os.dup(process.stdin.fileno()))
    try:
        process.stdin.write(sent.data + encode(frames.Ping(5.0)))
        process.stdin.close()
        said = b""
        while not said.endswith(sent.marker):
            said += (byte := os.read(process.stdout.fileno(), 1))
            assert byte, process.stderr.read()
        viewer.start()
        hello = viewer.wait_for(frames.Hello)
        assert hello.nonce.encode() in sent.marker
        assert hello.py.startswith(f"3.{minor}.")
        assert hello.cols["g"] == list(frames.DEVICE_COLUMNS)
        viewer.wait_for(frames.Pong)  # what was sent right behind the zip is a request
        for index in (0, 1):
            gpu, _ = viewer.definition("gpu", lambda one, index=index: one.index == index)
            viewer.wait(
                lambda gpu=gpu: any(
                    0 < (row["sm_active_percent"] or 0) < 100 for row in viewer.rows("g", gpu)
                ),
                "readings of the driver",
            )
        _, told = viewer.definition("proc", lambda one: one.pid == os.getpid())
        assert told.command
        _, host = viewer.definition("host", lambda one: one.cpu_count)
        assert host.cpu_count == os.cpu_count()
        viewer.wait(
            lambda: any(row["cpu_percent"] is not None for row in viewer.rows("h", 0)),
            "readings of the host",
        )
        assert "site-packages" not in Path(f"/proc/{hello.pid}/maps").read_text()
        viewer.close_requests()
        bye = viewer.wait_end()
        assert bye is not None
        assert "standard input was closed" in bye.why
        assert process.wait(10) == 0
    finally:
        viewer.close_requests()
        process.kill()
        process.wait()
        viewer.join()


def test_it_leaves_nothing_where_it_ran(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home)}
    before = set(os.listdir("/dev/shm"))
    sent = bootstrap.preamble(5.0)
    process = start(env=env)
    process.stdin.write(sent.data)
    process.stdin.flush()
    hello = next(frames_behind(process, sent.marker))
    files = [os.readlink(path) for path in Path(f"/proc/{hello.pid}/fd").iterdir()]
    assert any("memfd:gpuscope" in name for name in files)
    assert not [name for name in files if name.startswith("socket:")]
    process.stdin.close()
    process.wait(10)
    assert list(home.rglob("*")) == []
    assert set(os.listdir("/dev/shm")) == before


@pytest.mark.parametrize("cut", ["in the stage", "in the header", "in the zip"])
def test_a_pipe_that_ends_early_ends_it(cut):
    sent = bootstrap.preamble(2.0).data
    stage = sent.index(b"\n") + 1
    at = {"in the stage": stage // 2, "in the header": stage + 10, "in the zip": len(sent) - 1000}[
        cut
    ]
    process = start()
    _, said = process.communicate(sent[:at], timeout=PATIENCE)
    assert process.returncode == (75 if cut == "in the stage" else bootstrap.DAMAGED)
    assert (b"the connection ended while the agent was being sent" in said) == (
        cut != "in the stage"
    )


def test_a_damaged_zip_is_not_run():
    sent = bytearray(bootstrap.preamble(2.0).data)
    sent[-5000] ^= 1
    process = start()
    out, said = process.communicate(bytes(sent), timeout=PATIENCE)
    assert process.returncode == bootstrap.DAMAGED
    assert b"what arrived is not what was sent" in said
    assert b"gpuscope" not in out


def test_an_old_python_looks_for_a_newer_one_and_else_says_so(tmp_path):
    """The floor is raised instead of the Python lowered: the same lines decide."""
    source = bootstrap._STAGE % {
        "oldest": (3, 99),
        "old": bootstrap.OLD_PYTHON,
        "damaged": 74,
        "names": ["python3.99"],
    }
    (tmp_path / "python3.99").write_text("#!/bin/sh\necho found $1 $2 $3 $4\n")
    line = f"stage={source!r};exec(stage)\n".encode()
    process = start(env={"PATH": "/usr/bin:/bin"})
    _, said = process.communicate(line, timeout=PATIENCE)
    assert process.returncode == bootstrap.OLD_PYTHON
    assert b"gpuscope: python3 there is 3." in said
    (tmp_path / "python3.99").chmod(0o755)
    process = start(env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    out, _ = process.communicate(line, timeout=PATIENCE)
    assert out == b"found -I -S -u -c\n"


def test_the_python_of_a_process_is_the_last_resort(tmp_path):
    """No python3 on any usual path is hard to stage; the loop itself is not."""
    script = bootstrap.script()
    assert "/proc/[0-9]*/exe" in script
    assert script.endswith(f"exit {bootstrap.NO_PYTHON}")
    usual = ('"python3"', "/usr/bin/python3", "/usr/local/bin/python3", "/opt/conda")
    narrowed = script
    for one in usual:
        narrowed = narrowed.replace(
            one, one.replace("python3", "python3-none").replace("conda", "none")
        )
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CONDA_PREFIX": str(tmp_path)}
    done = subprocess.run(
        ["sh", "-c", narrowed],
        input=b"os.write(1,b'up')\n",
        env=env,
        capture_output=True,
        timeout=PATIENCE,
    )
    assert done.stdout == b"up", done.stderr  # we are a Python that runs here


def test_without_a_memory_file_a_nameless_one_does(tmp_path):
    source = bootstrap._STAGE % {"oldest": (3, 8), "old": 76, "damaged": 74, "names": []}
    source = source.replace("os.memfd_create(", "os.no_such_function(")
    sent = bootstrap.preamble(2.0)
    data = f"stage={source!r};exec(stage)\n".encode() + sent.data[sent.data.index(b"\n") + 1 :]
    process = start(env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)})
    process.stdin.write(data)
    process.stdin.flush()
    assert isinstance(next(frames_behind(process, sent.marker)), frames.Hello)
    process.stdin.close()
    process.wait(10)
    assert list(tmp_path.iterdir()) == []


def test_what_is_sent_is_small_and_has_no_secret():
    sent = bootstrap.preamble(2.0)
    # half of it the probe, for a trainer that has none: 8 kB its time ledger with the functions of
    # frameworks and the debugging settings, 9 kB its look, 4 kB its count of a step; 1 kB by which
    # signal or exit code a trainer ended; 1 kB how many cores the loading of its batches needs;
    # 1 kB whether a trainer was asked to end, and which line calls gc.collect(); 1 kB since which
    # step a loss is NaN, and which calls a look leaves out; 1 kB a look at one step, and the
    # quickest steps of a rank
    assert len(sent.data) < 216_000
    head = json.loads(sent.data.split(b"\n", 2)[1])
    assert set(head) == {"bytes", "sha256", "nonce", "args"}
    assert bootstrap.preamble(2.0).marker != sent.marker


def test_it_ends_when_nobody_reads():
    sent = bootstrap.preamble(10.0)
    process = start()
    process.stdin.write(sent.data)
    process.stdin.flush()
    hello = next(frames_behind(process, sent.marker))
    process.stdout.close()
    until(lambda: not alive(hello.pid), 5.0)
    process.stdin.close()
    process.wait(10)


class Unannotated(ast.NodeTransformer):
    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_AnnAssign(self, node):
        if node.value is None:
            return node
        return ast.copy_location(ast.Assign([node.target], node.value), node)


@pytest.mark.slow
def test_what_is_sent_is_the_same_program_line_by_line():
    def program(source):
        """Without what explains: every statement with its line."""
        tree = Unannotated().visit(ast.parse(source))
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                node.value.value = ""
        lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)]
        return ast.dump(tree), lines

    sources = [
        content for name, content in bundle.agent_contents().items() if name.startswith("gpuscope/")
    ]
    assert len(sources) > 60
    assert all(program(agent_source.bare(source)) == program(source) for source in sources)
    text = 'x = "# no comment"  # one\nclass A:\n    """Two\n    lines, ä."""\n    y = 1  # ö\n'
    assert (
        agent_source.bare(text.encode()).decode() == 'x = "# no comment"\nclass A:\n ""\n\n y = 1\n'
    )
    text = "if x:\n    y = (1,\n        2)\n    z = '''a\n    b'''\n"
    text += "    while y: \\\n        y = f(y)\n"
    assert (
        agent_source.bare(text.encode()).decode()
        == "if x:\n y = (1,\n 2)\n z = '''a\n    b'''\n while y: \\\n y = f(y)\n"
    )
