"""What a target means, and which words never become an argument of anything."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.attach import clusters, targets
from gpuscope.attach.targets import (
    KUBERNETES,
    LOCAL,
    PREFIX,
    SLURM,
    SSH,
    BadTarget,
    parse,
    parse_all,
)
from gpuscope.cli import main as cli
from tests.fakes.cases import each
from tests.fakes.in_process import command

HOSTILE = [
    "-oProxyCommand=x",
    "u@-x",
    "a b",
    "$(x)",
    "u@$(x)",
    "`x`",
    "h;x",
    "h|x",
    "h&x",
    "h\nx",
    "h\tx",
    "h\x1b[31mx",
    "u@h'x",
    'u@h"x',
    "h<x",
    "h>x",
    "h*",
    "h?",
    "~h/x",
    "u@",
    "@h",
    "h:",
    "h:x",
    "h:-1",
    "h:0",
    "h:99999999",
    "",
    " h",
    "h ",
    "u@h@",
    "-",
    "--",
    "\x00",
    "h\u202eevil",
    "ssh://h:22",
    "../h",
    "h/..",
    "#h",
    "!h",
    "h%20",
    "[h",
    "fe80::1%$x",
    "a" * 300,
    "u" * 80 + "@h",
    "k8s:ns",
    "k8s:-n/x",
    "k8s:ns/p;x",
    "k8s:a/b/c/d",
    "slurm:",
    "slurm:x",
    "slurm:1;2",
    "slurm:1@-x",
    "slurm:1@a b",
]


@each(
    ("text", "kind", "host", "pid"),
    [
        ("4242", LOCAL, "", 4242),
        ("gpu07", SSH, "gpu07", None),
        ("ada@gpu07.example.org", SSH, "ada@gpu07.example.org", None),
        ("ada@gpu07:4242", SSH, "ada@gpu07", 4242),
        ("gpu07:4242", SSH, "gpu07", 4242),
        ("ada.b@corp.org@bastion", SSH, "ada.b@corp.org@bastion", None),
        ("fe80::1%eth0", SSH, "fe80::1%eth0", None),
        ("ada@[2001:db8::1]:77", SSH, "ada@2001:db8::1", 77),
        ("slurm:123", SLURM, "", None),
        ("slurm:123_4@ada@login", SLURM, "ada@login", None),
        ("slurm:123@login:77", SLURM, "login", 77),
        ("k8s:team/trainer-0", KUBERNETES, "", None),
        ("k8s:team/trainer-0/main:77", KUBERNETES, "", 77),
    ],
)
def test_what_a_target_means(text, kind, host, pid):
    found = parse(text)
    assert (found.kind, found.host, found.pid) == (kind, host, pid)


def test_what_is_no_name_is_refused_in_words_that_are_safe():
    for text in HOSTILE:
        with pytest.raises(BadTarget) as refused:
            parse(text)
        said = str(refused.value)
        assert said.isprintable(), text
        assert said.endswith((".", "'")), text


@pytest.mark.parametrize("verb", ["devices", "ps", "attach"])
def test_nothing_is_started_for_what_is_no_name(verb, monkeypatch, capsys):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("something was started"))
    for text in HOSTILE:
        assert cli.main([verb, *(["--"] if text.startswith("-") else []), text]) == 64, text
        assert f"gpuscope {verb}: " in capsys.readouterr().err


@given(st.text(max_size=40))
def test_whatever_passes_is_no_option_and_nothing_a_shell_acts_on(text):
    try:
        found = parse(text)
    except BadTarget:
        return
    for word in (found.host, found.pod, found.namespace, found.container, found.job):
        assert not word.startswith("-")
        assert not set(word) & set(" \t\n;|&$`'\"<>(){}*?!#~")
        assert word.isprintable()
        assert word.isascii()


def test_a_hosts_file_says_where_it_is_wrong(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# mine\n\nada@a  # first\nb:77\n")
    assert [one.text for one in parse_all([], [str(path)])] == ["ada@a", "b:77"]
    path.write_text("a\n-oProxyCommand=x\n")
    with pytest.raises(BadTarget, match=r"hosts:2: -oProxyCommand=x: not a host name"):
        parse_all([], [str(path)])
    path.write_text("# nobody\n")
    with pytest.raises(BadTarget, match="it names no host"):
        parse_all([], [str(path)])
    with pytest.raises(BadTarget, match="No such file"):
        parse_all([], [str(tmp_path / "none")])
    path.write_bytes(b"h\n" * 200_000)
    with pytest.raises(BadTarget, match="larger than"):
        parse_all([], [str(path)])


def test_more_hosts_than_one_viewer_shows_are_handed_on():
    with pytest.raises(BadTarget, match=r"65 hosts.*Prometheus"):
        parse_all([f"h{n}" for n in range(65)])
    assert len(parse_all([f"h{n % 64}" for n in range(200)])) == 64


def test_a_prefix_is_split_and_never_run():
    (found,) = parse_all([], via="docker exec -i 'my trainer'")
    assert (found.kind, found.via) == (PREFIX, ("docker", "exec", "-i", "my trainer"))
    (both,) = parse_all(["77"], via="sudo -n -u ada")
    assert (both.kind, both.pid, both.is_remote, both.where) == (LOCAL, 77, True, "sudo -n -u ada")
    for text in ("-x", "a 'b", "a\nb", "a" * 5000):
        with pytest.raises(BadTarget):
            parse_all([], via=text)


def test_a_file_is_not_taken_for_a_host(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ada@gpu07").write_text("")
    assert not targets.is_remote_word("ada@gpu07")
    assert targets.is_remote_word("ada@gpu08")
    assert targets.is_remote_word("slurm:77")
    assert not targets.is_remote_word("logs/ada@x.txt")
    assert not targets.is_remote_word("train.log")


# ── clusters ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu7", ["gpu7"]),
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("r[1-2]n[8-9]-ib", ["r1n8-ib", "r1n9-ib", "r2n8-ib", "r2n9-ib"]),
    ],
)
def test_lists_of_nodes(text, names):
    assert clusters.expand(text) == names


@pytest.mark.parametrize(
    "text", ["gpu[1-99]", "gpu[9-1]", "gpu[a]", "-x", "gpu[1-2];x", "a[0-99999999]"]
)
def test_lists_of_nodes_that_are_none(text):
    with pytest.raises(BadTarget):
        clusters.expand(text)


def test_a_job_becomes_its_nodes_through_the_login_node():
    asked: list[list[str]] = []

    def ask(words):
        asked.append(list(words))
        return "gpu[1-2]\n"

    found = clusters.resolve([parse("slurm:77@ada@login"), parse("h")], ask=ask)
    assert [one.node for one in found] == ["gpu1", "gpu2", ""]
    assert len({one.where for one in found}) == 3
    (words,) = asked
    assert words[0] == "ssh"
    assert words[-2] == "ada@login"
    assert words[-1] == "exec squeue --noheader --jobs 77 --states=RUNNING --format=%N"
    with pytest.raises(BadTarget, match="no such running job"):
        clusters.resolve([parse("slurm:77")], ask=lambda _: "\n")
    with pytest.raises(BadTarget, match="not a name"):
        clusters.resolve([parse("slurm:77")], ask=lambda _: "-oProxyCommand=x\n")


def test_a_label_becomes_its_pods():
    found = clusters.pods_of("app=x", "team", "main", ask=lambda _: "team a-0\nteam a-1\n")
    assert [(one.namespace, one.pod, one.container) for one in found] == [
        ("team", "a-0", "main"),
        ("team", "a-1", "main"),
    ]
    for answer in ("", "team -x\n", "team a;b\n"):
        with pytest.raises(BadTarget):
            clusters.pods_of("app=x", ask=lambda _, answer=answer: answer)
    for selector in ("-n", "app=x;y", "a b", "$(x)"):
        with pytest.raises(BadTarget):
            clusters.pods_of(selector, ask=lambda _: pytest.fail("asked"))


def test_a_command_that_is_not_there_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadTarget, match="cannot start squeue: No such file"):
        clusters.resolve([parse("slurm:77")])
    # the command line was valid: nothing could be checked
    assert command("devices", "slurm:77").returncode == 3
    assert command("devices", "slurm:").returncode == 64


@pytest.mark.parametrize(
    ("typed", "via", "named"),
    [
        ("7", "", "8"),
        ("ada@node-3", "", "ada@node-3:8"),
        ("ada@node-3:7", "", "ada@node-3:8"),
        ("k8s:lab/trainer-0", "", "k8s:lab/trainer-0:8"),
        ("slurm:42@ada@login", "", "slurm:42@ada@login:8"),
        ("7", "docker exec -i box", "8 --via 'docker exec -i box'"),
        (None, "docker exec -i box", "8 --via 'docker exec -i box'"),
    ],
)
def test_one_process_of_a_place_is_named_so_that_a_verb_understands_it(typed, via, named):
    (place,) = parse_all([typed] if typed is not None else [], via=via)
    assert place.words_for(8) == named
    word, *options = shlex.split(named)
    (again,) = parse_all([word], via=options[1] if options else "")
    assert again.pid == 8
    assert again.via == place.via
    assert again.host == place.host
