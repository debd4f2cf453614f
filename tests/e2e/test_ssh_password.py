"""A password is typed, right and wrong, to a real OpenSSH server.

The tests see who may be asked, and how often.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.tmux import TMUX, Tmux, assigned, homes
from tests.fakes import sshd

WHY_NOT = sshd.why_not() or sshd.why_no_person() or ("" if TMUX else "tmux is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")]
TYPED = "•"
"""What a field for passwords shows for each key."""


@pytest.fixture(scope="module")
def person(tmp_path_factory):
    with sshd.person(tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture(scope="module", params=["password", "keyboard-interactive"])
def server(request, person, tmp_path_factory):
    if request.param == "password":
        extra = "PasswordAuthentication yes\n"
    elif Path("/etc/pam.d/sshd").exists():
        extra = "UsePAM yes\nKbdInteractiveAuthentication yes\n"
    else:
        pytest.skip("keyboard-interactive needs PAM, and it knows no sshd here")
    with sshd.server(
        tmp_path_factory.mktemp("sshd"), f"{extra}MaxAuthTries 6\n", person
    ) as running:
        yield running


@pytest.fixture
def screen(server, tmp_path):
    home = assigned(homes(tmp_path))
    words = shlex.join(
        [sys.executable, "-m", "gpuscope", "attach", "--ssh-command", server.ssh_command, "typed"]
    )
    one = Tmux(
        tmp_path, f"env -u SSH_CONNECTION -u NO_COLOR -u COLUMNS -u LINES {home} {words}", 110, 30
    )
    yield one
    one.close()


def wrong(screen) -> None:
    """Answers the next dialog, which is a new one as long as nothing is typed in it."""
    asked = screen.wait("ssh asks, on the way to typed", TYPED)
    assert "assword" in asked
    screen.keys("w", "r", "o", "n", "g")
    screen.wait(f"{TYPED}{{5}}")
    assert "wrong" not in screen.text()
    screen.keys("Enter")


def test_a_wrong_password_is_asked_again_and_the_right_one_gets_in(screen, person):
    wrong(screen)
    screen.wait("ssh asks, on the way to typed", TYPED)
    screen.keys(*person.password, "Enter")
    screen.wait("● live")
    assert person.password not in screen.text()
    screen.keys("q")
    screen.wait("EXIT=0")


def test_a_wrong_password_three_times_ends_it_and_f5_asks_again(screen, person):
    for _ in range(3):
        wrong(screen)
    screen.wait(r"(?s)typed: permission denied.*F5: connect again")
    time.sleep(1.5)
    assert "ssh asks" not in screen.text()  # nobody is asked again by itself
    screen.keys("F5")
    screen.wait("ssh asks")
    screen.keys(*person.password, "Enter")
    screen.wait("● live")
    assert person.password not in screen.text()
    screen.keys("q")
    screen.wait("EXIT=0")


def test_who_refuses_to_answer_is_not_asked_again(screen):
    screen.wait("ssh asks")
    screen.keys("Escape")
    screen.wait(r"(?s)typed: .*F5")
    time.sleep(1.0)
    assert "ssh asks" not in screen.text()
    screen.keys("q")
    screen.wait("EXIT=0")


def test_a_verb_without_a_terminal_asks_nobody(server, tmp_path):
    words = [
        sys.executable,
        "-m",
        "gpuscope",
        "devices",
        "--ssh-command",
        server.ssh_command,
        "typed",
    ]
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, env=env
    )
    assert done.returncode == 3
    assert "typed: permission denied" in done.stderr
    assert list(tmp_path.iterdir()) == []
