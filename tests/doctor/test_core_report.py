"""Ranking, exit codes, the JSON document and the text."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.doctor.finding import Abstained, EndedTrainer, Evidence, Finding, Fix, Report
from gpuscope.doctor.order import rank
from gpuscope.text.styled import plain
from gpuscope.text.width import cells, wrap

TABLE = table.load()


def finding(
    pitfall="no-grad-eval", severity="problem", confidence="definite", title="It is so.", **rest
):
    evidence = rest.pop("evidence", (Evidence("3.5 GiB of 4.0 GiB", "log:7"),))
    return Finding(
        pitfall=pitfall,
        cause="test.cause",
        title=title,
        severity=severity,
        confidence=confidence,
        evidence=evidence,
        **rest,
    )


def settled(*findings, **rest):
    return reports.finish(Report(findings=findings, **rest), TABLE)


def text(report, width=80, code=0):
    return [plain(line) for line in reports.lines(report, code, width)]


def test_the_worst_and_surest_comes_first():
    given = [
        finding("set-to-none", "info", "definite"),
        finding("pin-memory", "problem", "prior"),
        finding("num-workers", "warning", "definite"),
        finding("empty-cache", "problem", "likely"),
        finding("no-grad-eval", "problem", "likely", rank=2.0),
        finding("retain-graph", "problem", "definite"),
    ]
    wanted = [
        "retain-graph",
        "no-grad-eval",
        "empty-cache",
        "num-workers",
        "set-to-none",
        "pin-memory",
    ]
    assert [one.pitfall for one in rank(given)] == wanted
    assert [one.pitfall for one in rank(reversed(given))] == wanted


def test_a_prior_is_info_and_sets_no_exit_code():
    report = settled(finding(severity="problem", confidence="prior"))
    assert report.findings[0].severity == "info"
    assert reports.exit_code(report) == 0


@pytest.mark.parametrize(("placed", "told"), [("problem", 1), ("warning", 1), ("info", 2)])
def test_what_is_said_of_a_trainer_is_not_said_again_unless_it_is_graver(placed, told):
    given = [finding(severity="warning"), finding(severity=placed, where="rank 0")]
    assert len(rank(given)) == len(rank(reversed(given))) == told


def test_of_one_pitfall_in_one_place_the_best_is_kept():
    found = rank(
        [
            finding(severity="warning", confidence="likely"),
            finding(severity="problem", confidence="likely", title="The best."),
            finding(severity="warning", where="rank 1"),
        ]
    )
    assert [(one.title, one.where) for one in found] == [("The best.", ""), ("It is so.", "rank 1")]


@pytest.mark.parametrize(
    ("severities", "problems", "fail_on", "code"),
    [
        ((), (), "warning", 0),
        (("info",), (), "warning", 0),
        (("warning",), (), "warning", 1),
        (("warning",), (), "problem", 0),
        (("warning", "problem"), (), "problem", 2),
        (("problem",), (), "never", 0),
        ((), ("why",), "warning", 3),
        (("warning",), ("why",), "warning", 3),
        (("problem",), ("why",), "warning", 2),
        (("problem",), ("why",), "never", 3),
    ],
)
def test_exit_codes(severities, problems, fail_on, code):
    findings = [finding(severity=severity, where=str(n)) for n, severity in enumerate(severities)]
    assert reports.exit_code(settled(*findings, problems=problems), fail_on) == code


def test_the_document_has_the_promised_keys_and_null_for_what_is_missing():
    own = Fix(title="Own", command="true")
    report = settled(
        finding(fixes=(own,)),
        finding("hang-in-collective", "warning"),
        abstained=(Abstained(pitfall="empty-cache", missing="a second snapshot"),),
        problems=("x could not be read.",),
        examined=("log", "log"),
    )
    document = json.loads(json.dumps(reports.document(report, 2), allow_nan=False))
    assert {"findings", "abstained", "examined", "problems", "exit_code"} == document.keys()
    first, second = document["findings"]
    keys = {
        "pitfall",
        "cause",
        "title",
        "severity",
        "confidence",
        "job",
        "where",
        "evidence",
        "fixes",
        "effect",
        "verify",
    }
    assert first.keys() == second.keys() == keys
    assert first["where"] is None
    assert first["evidence"] == [{"text": "3.5 GiB of 4.0 GiB", "source": "log:7"}]
    assert [fix["command"] for fix in first["fixes"]] == ["true"]
    assert first["fixes"][0]["environment"] is None
    assert first["fixes"][0]["now"] is False
    assert first["verify"] == TABLE["no-grad-eval"].verify
    assert [fix["title"] for fix in second["fixes"]] == [
        fix.title for fix in TABLE["hang-in-collective"].fixes_for(second["cause"])
    ]
    assert second["verify"] is None
    assert document["abstained"] == [{"pitfall": "empty-cache", "missing": "a second snapshot"}]
    assert document["problems"] == [{"severity": "unchecked", "reason": "x could not be read."}]
    assert document["examined"] == ["log"]


def test_a_pitfall_that_was_found_is_not_also_undecided():
    assert (
        settled(finding(), abstained=(Abstained(pitfall="no-grad-eval", missing="more"),)).abstained
        == ()
    )


def test_what_comes_from_outside_is_made_harmless_and_bounded():
    evil = "\x1b]52;c;eA==\x07" + "x" * 10_000
    report = settled(
        finding(
            title=evil,
            where=evil,
            evidence=(Evidence(evil, evil),) * 500,
            fixes=(Fix(title=evil, code=f"a\n{evil[:900]}\nb"),) * 500,
        ),
        *(finding(where=str(number)) for number in range(1000)),
        problems=(evil,) * 5000,
        examined=tuple(f"{evil}{number}" for number in range(5000)),
        abstained=tuple(Abstained(pitfall=evil, missing=str(n)) for n in range(5000)),
    )
    dumped = json.dumps(reports.document(report, 2))
    assert len(dumped) < 4 << 20
    shown = "\n".join(text(report))
    for out in (dumped, shown):
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "\\u001b" not in out
    code = next(one for one in report.findings if one.where.startswith("\\x1b")).fixes[0].code
    assert [code.splitlines()[0], code.splitlines()[-1]] == ["a", "b"]


@pytest.mark.parametrize("width", [50, 80, 140])
def test_no_line_is_wider_than_asked_but_those_to_copy(width):
    long = "記憶體 " + "a longer sentence of evidence that has to be broken somewhere " * 3
    report = settled(
        finding(title=long, where="train.py:88", evidence=(Evidence(long, "log:1"),)),
        finding("pin-memory", confidence="prior"),
        problems=(long,),
        examined=("log",),
        abstained=(Abstained(pitfall="empty-cache", missing=long),),
    )
    copied = {
        line.strip()
        for one in report.findings
        for fix in one.fixes
        for line in (*fix.code.splitlines(), *fix.before.splitlines(), fix.environment, fix.command)
    }
    for line in text(report, width):
        to_copy = line.strip().removeprefix("+ ").removeprefix("- ").strip() in copied
        assert to_copy or "gpuscope " in line or cells(line) <= width


def test_the_text_tells_title_evidence_fix_and_what_to_run():
    report = settled(
        finding(
            severity="warning",
            where="rank 3",
            evidence=tuple(Evidence(f"line {n}") for n in range(9)),
        ),
        finding(
            "empty-cache",
            "info",
            fixes=(Fix(title="Do it", command="echo now", now=True, cost="nothing"),),
        ),
        finding("pin-memory", confidence="prior", title="Perhaps pinned"),
        examined=("log",),
    )
    shown = "\n".join(text(report, code=1))
    assert "◆ It is so.  definite, rank 3" in shown
    assert "○ It is so." in shown
    assert "line 5" in shown
    assert "line 6" not in shown
    assert "and 3 more lines of evidence" in shown
    assert "  + with torch.no_grad():" in shown
    assert "Now    Do it. Trade-off: nothing." in shown
    assert "Repro  gpuscope lab pitfall no-grad-eval" in shown
    assert "gpuscope doctor --explain no-grad-eval" in shown
    assert shown.index("Also possible") < shown.index("Perhaps pinned")
    assert shown.splitlines()[-1] == "1 warning in log. Exit code 1."


def test_evidence_is_told_once():
    same, other = (
        Evidence("the whole message", "log:7"),
        Evidence("a number", "log:7"),
    )
    report = settled(
        finding(evidence=(same,)),
        finding("empty-cache", evidence=(same, other)),
        finding("pin-memory", evidence=(same,)),
    )
    shown = text(report)
    assert sum("the whole message" in line for line in shown) == 1
    assert sum("a number" in line for line in shown) == 1
    assert sum("same evidence as above" in line for line in shown) == 1


def test_fixes_of_an_earlier_finding_are_not_repeated():
    """Ten trainings with one fault need its fixes once, each with the one that is its own."""
    fixes = tuple(Fix(title=f"Do it in way {n}", code=f"x = {n}") for n in (1, 2))
    own = Fix(title="Look at b.py:7")
    report = settled(
        finding("empty-cache", fixes=fixes, where="a.py"),
        finding("empty-cache", title="It is so too.", fixes=(own, *fixes), where="b.py"),
    )
    shown = text(report)
    assert sum("Do it in way" in line for line in shown) == 2
    assert sum("x = 1" in line for line in shown) == 1
    assert [line for line in shown if "b.py:7" in line] == ["  Fix    Look at b.py:7."]
    assert sum(line == "  or     as above" for line in shown) == 1
    assert sum("--explain empty-cache" in line for line in shown) == 1
    assert len(reports.document(report, 1)["findings"][1]["fixes"]) == 3, "a program gets them all"
    same = settled(
        finding("empty-cache", fixes=fixes, where="a.py"),
        finding("empty-cache", title="It is so too.", fixes=fixes, where="b.py"),
    )
    assert "  Fix    Do it in way 1, as above." in text(same)


def test_a_command_that_watches_a_training_is_not_said_to_reproduce_it():
    for verify, label in (("gpuscope lab pitfall x", "Repro"), ("gpuscope doctor 7", "Check")):
        shown = text(settled(finding("empty-cache", verify=verify)))
        assert f"  {label}  {verify}" in shown


def test_without_findings_it_says_what_was_looked_at():
    assert text(settled(examined=("log",)))[-1] == "Nothing wrong was found in log. Exit code 0."
    script = text(settled(examined=("train.py",)))[-1]
    assert script == "Nothing wrong was found in the text of train.py. Exit code 0."
    assert text(settled(problems=("why",)), code=3)[-1] == "Nothing was examined. Exit code 3."


def test_first_stands_what_was_looked_at_and_last_what_has_ended():
    gone = finding(
        "host-memory-limit", "info", past=True, title="pid 9 was killed", where="train.py (pid 9)"
    )
    ended = EndedTrainer(
        text="train.py (pid 9), 3 min ago, was killed", command="gpuscope replay 9.box"
    )
    looked = ("no GPU: no driver", "no torch in /usr")
    report = settled(
        gone, finding("empty-cache", "info"), finding("pin-memory", confidence="prior")
    )
    report = replace(report, examined=looked, ended=(ended,))
    shown = text(report)
    assert shown[:2] == ["Checked  no GPU: no driver · no torch in /usr", ""]
    wanted = [
        "· no torch in /usr",
        "It is so.",
        "Also possible",
        "Jobs that ended",
        ended.text,
        ended.command,
    ]
    places = [next(n for n, line in enumerate(shown) if one in line) for one in wanted]
    assert places == sorted(places)
    assert "pid 9 was killed" not in "\n".join(shown), "it is folded into its line"
    assert [one.pitfall for one in report.findings] == [
        "empty-cache",
        "pin-memory",
        "host-memory-limit",
    ]
    assert ended.text in reports.document(report, 0)["examined"]
    assert shown[-1] == "No problem and no warning. Exit code 0."
    guess = replace(report, findings=(finding(severity="info", confidence="prior"),))
    assert text(guess)[-1] == "Nothing that decides the cause was found. Exit code 0."
    words = replace(guess, examined=("the symptom",))
    assert text(words)[-1] == "These words alone do not decide it. Exit code 0."
    assert (
        text(replace(report, findings=(), ended=()))[-1] == "Nothing wrong was found. Exit code 0."
    )
    before = "2 jobs ended badly in the last day: 2 failed"
    ended = replace(report, findings=(), ended_here=before)
    assert " ".join(text(ended)[-2:]).endswith(
        f"Nothing wrong was found in what runs now. {before}. Exit code 0."
    )


def test_findings_that_are_left_out_are_counted():
    report = settled(*(finding(where=str(number)) for number in range(1000)))
    assert len(report.findings) == reports.MAX_FINDINGS
    assert report.problems == (
        f"Of 1000 findings only the first {reports.MAX_FINDINGS} are shown.",
    )


def test_wrapping_counts_columns_and_loses_nothing():
    given = "漢字漢字漢字 é" + "z" * 30 + " end"
    parts = wrap(given, 9)
    assert all(cells(part) <= 9 for part in parts)
    assert "".join(parts).replace(" ", "") == given.replace(" ", "")
    assert wrap("", 9) == []


def of_places(*places, title="GPU {} is throttled: thermal", heat="80 °C", **rest):
    return [
        finding(
            "throttled",
            "warning",
            title=title.format(number),
            where=place,
            evidence=(Evidence(f"clock events: thermal, {heat}", "nvml"),),
            **rest,
        )
        for number, place in enumerate(places)
    ]


def test_the_text_has_findings_that_differ_in_their_gpu_alone_once():
    report = settled(*of_places(*(f"GPU {index}" for index in (0, 1, 2, 5))))
    lines = text(report, 100, 1)
    assert lines[0] == "◆ 4× GPU 0 is throttled: thermal  definite, on 4 GPUs: 0-2, 5"
    assert lines[1] == "  GPU 0-2, 5: clock events: thermal, 80 °C   nvml"
    assert sum("throttled:" in line for line in lines) == 1
    assert lines[-1] == "1 warning. Exit code 1."
    assert len(reports.document(report, 1)["findings"]) == 4


def test_each_gpu_keeps_its_own_figures_in_the_evidence():
    given = of_places("GPU 0 power", heat="71 °C") + of_places("GPU 1 power", heat="83 °C")
    lines = text(settled(*given), 100, 1)
    assert lines[0].endswith("on 2 GPUs: 0, 1")
    assert lines[1:3] == [
        "  GPU 0: clock events: thermal, 71 °C   nvml",
        "  GPU 1: clock events: thermal, 83 °C   nvml",
    ]


def test_ranks_with_the_same_finding_are_named_below_the_first():
    places = [f"rank {rank}, GPU {rank}, pid {4000 + rank}" for rank in range(9)]
    lines = text(settled(*of_places(*places, title="Rank {} waits for input")), 100, 1)
    assert lines[0] == "◆ 9× Rank 0 waits for input  definite, on 9 ranks: 0-8"
    assert "  Also   Rank 1 waits for input (rank 1, GPU 1, pid 4001)" in lines
    assert "         and 2 more: --json" in lines


@pytest.mark.parametrize(
    "places",
    [
        ("GPU 0", "GPU 1 power"),
        ("rank 0, GPU 0, pid 4000", "rank 0, GPU 1, pid 4001"),
        ("pid 4000", "pid 4001"),
        ("train.py:3", "train.py:9"),
    ],
)
def test_what_is_not_one_job_or_one_thing_stays_apart(places):
    lines = text(settled(*of_places(*places)), 100, 1)
    assert sum(line.startswith("◆ ") for line in lines) == 2
    assert not any("×" in line for line in lines)
