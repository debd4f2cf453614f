"""A real OpenSSH server on loopback, with its own keys and configuration.

A client's configuration for it is made too.
"""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.forked_scripts import free_port

PATIENCE = 15.0
PASSPHRASE = "an open secret"


def why_not() -> str:
    """Why there is none on this machine, "" when there is."""
    missing = [name for name in ("ssh", "ssh-keygen") if shutil.which(name) is None]
    if sshd_path() is None:
        missing.append("sshd")
    if missing:
        return f"no {', '.join(missing)} here (apt install openssh-server)"
    if os.geteuid() == 0 and not _separation_directory():
        return "sshd as root needs /run/sshd, which cannot be made"
    return ""


def sshd_path() -> str | None:
    return shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


def _separation_directory() -> bool:
    try:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    except OSError:
        return False
    return True


@dataclass
class Server:
    """A running server.

    ``ssh`` are the words that reach it; hosts of the client's configuration: ``good``, ``jumped``
    (through ``good``), ``changed`` (another host key is known), ``unknown`` (none is known, asks),
    ``refused`` (a key that it does not take), ``locked`` (a key with a passphrase), ``closed``
    (nobody listens), ``shared`` (a master).
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def ssh(self) -> list[str]:
        return ["ssh", "-F", str(self.folder / "ssh_config")]

    @property
    def ssh_command(self) -> str:
        return " ".join(self.ssh)

    def connections(self) -> list[int]:
        """Pids of the server's children: one or two a connection."""
        found = (
            Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        )
        return [int(pid) for pid in found]


@dataclass
class Person:
    """A throw-away user of this machine with a password."""

    name: str
    password: str


def why_no_person() -> str:
    """Why none can be made, "" where one can."""
    if os.geteuid() != 0:
        return "making a user needs root"
    return (
        ""
        if all(map(shutil.which, ("useradd", "userdel", "openssl")))
        else "no useradd or openssl here"
    )


@contextmanager
def person(home: Path) -> Iterator[Person]:
    """Makes one whose home is ``home``, and removes it."""
    name, password = f"gs{secrets.token_hex(4)}", secrets.token_urlsafe(9)
    hashed = subprocess.run(
        ["openssl", "passwd", "-6", "-stdin"],
        input=password,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    ).stdout.strip()
    words = ["useradd", "-M", "-d", str(home), "-s", "/bin/sh", "-p", hashed, name]
    subprocess.run(words, check=True, capture_output=True, timeout=30)
    try:
        yield Person(name, password)
    finally:
        subprocess.run(["userdel", name], check=False, capture_output=True, timeout=30)


@dataclass
class Inside:
    """A network namespace that is a host of its own.

    ``address`` is its address there, ``link`` the cable's end here.
    """

    name: str
    address: str
    link: str


def why_no_network() -> str:
    """Why no namespace can be made, "" where one can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and iproute2"
    name = f"gs{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True).returncode:
        return "network namespaces are not permitted here"
    made = subprocess.run(
        ["ip", "link", "add", f"{name}a", "type", "veth", "peer", "name", f"{name}b"],
        check=False,
        capture_output=True,
    )
    subprocess.run(["ip", "link", "del", f"{name}a"], check=False, capture_output=True)
    subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    return "a pair of network devices cannot be made here" if made.returncode else ""


@contextmanager
def network(number: int) -> Iterator[Inside]:
    """A namespace with an address of its own, reached over a pair of devices.

    ``number``: 0 to 63, one for each.
    """
    name = f"gs{os.getpid() % 1_000_000}n{number}"
    subnet = f"198.18.{os.getpid() % 256}"  # for tests of networks, routed nowhere
    here, there = f"{subnet}.{4 * number + 1}", f"{subnet}.{4 * number + 2}"
    link, peer = f"{name}a", f"{name}b"
    steps = [
        f"ip netns add {name}",
        f"ip link add {link} type veth peer name {peer} netns {name}",
        f"ip addr add {here}/30 dev {link}",
        f"ip link set {link} up",
        f"ip -n {name} addr add {there}/30 dev {peer}",
        f"ip -n {name} link set {peer} up",
        f"ip -n {name} link set lo up",
    ]
    try:
        for step in steps:
            subprocess.run(step.split(), check=True, capture_output=True, timeout=30)
        yield Inside(name, there, link)
    finally:
        subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def _key(path: Path, passphrase: str = "") -> Path:
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(words, check=True, timeout=30)
    return path


@contextmanager
def server(
    folder: Path, extra: str = "", person: Person | None = None, inside: Inside | None = None
) -> Iterator[Server]:
    """Starts one; ``extra`` goes to the beginning of its configuration. ``folder`` must be private.

    ``person`` may log in with a password, as host ``typed``; ``inside``: in a network of its own.
    """
    reason = why_not()
    assert not reason, reason
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    address, port = (inside.address, 22) if inside else ("127.0.0.1", free_port())
    for name in ("host", "other_host", "user", "stranger"):
        _key(folder / name)
    _key(folder / "locked", PASSPHRASE)
    keys = "".join((folder / f"{name}.pub").read_text() for name in ("user", "locked"))
    (folder / "authorized_keys").write_text(keys)
    for name, key in (("known_hosts", "host"), ("changed_hosts", "other_host")):
        (folder / name).write_text(
            f"[{address}]:{port},{address} {(folder / f'{key}.pub').read_text()}"
        )
    (folder / "sshd_config").write_text(
        f"{extra}Port {port}\nListenAddress {address}\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin yes\nLogLevel ERROR\n"
        "AcceptEnv GPUSCOPE_TEST_*\n"
    )
    same = (
        f"HostName {address}\nPort {port}\nUser {getpass.getuser()}\nIdentitiesOnly yes\n"
        "IdentityAgent none\n"
        "GlobalKnownHostsFile /dev/null\nNumberOfPasswordPrompts 1\n"
    )
    hosts = {
        "good": ("user", "known_hosts", "StrictHostKeyChecking yes"),
        "jumped": ("user", "known_hosts", "StrictHostKeyChecking yes\nProxyJump good"),
        "changed": ("user", "changed_hosts", "StrictHostKeyChecking yes"),
        "unknown": ("user", "asked_hosts", "StrictHostKeyChecking ask"),
        "refused": ("stranger", "known_hosts", "StrictHostKeyChecking yes"),
        "locked": ("locked", "known_hosts", "StrictHostKeyChecking yes"),
        "shared": (
            "user",
            "known_hosts",
            f"StrictHostKeyChecking yes\nControlPath {folder}/master",
        ),
    }
    text = "".join(
        f"Host {name}\n{same}IdentityFile {folder}/{key}\nUserKnownHostsFile {folder}/{known}\n"
        f"{more}\n"
        for name, (key, known, more) in hosts.items()
    )
    if person is not None:
        text += (
            f"Host typed\nHostName {address}\nPort {port}\nUser {person.name}\n"
            "PubkeyAuthentication no\n"
            f"UserKnownHostsFile {folder}/known_hosts\nGlobalKnownHostsFile /dev/null\n"
            "NumberOfPasswordPrompts 3\n"
        )
    text += f"Host closed\nHostName 127.0.0.1\nPort {free_port()}\n"
    (folder / "ssh_config").write_text(text)
    binary = sshd_path()
    assert binary is not None
    log = (folder / "sshd.log").open("wb")
    around = ["ip", "netns", "exec", inside.name] if inside else []
    process = subprocess.Popen(
        [*around, binary, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log
    )
    try:
        _await(process, address, port, folder / "sshd.log")
        yield Server(folder, port, process)
    finally:
        process.terminate()
        process.wait(10)
        log.close()


def _await(process: subprocess.Popen[bytes], address: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with socket.create_connection((address, port), 1):
                return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "sshd does not listen"
            time.sleep(0.02)
