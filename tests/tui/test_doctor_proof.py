"""Every proof that the pitfall table names for the Lab can be carried out there.

The rest says why it cannot.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.doctor import table
from gpuscope.doctor.finding import Evidence, Finding
from gpuscope.lab.claims import BY_ID
from gpuscope.lab.pitfalls import find
from gpuscope.lab.pitfalls import load as load_pitfalls
from gpuscope.tui.doctor.proof import NO_PROOF, Proof, parse_proof, proof_of
from tests.fakes.cases import each

LAB = sorted({row.verify for row in table.load().values() if row.verify.startswith("gpuscope lab")})


@each("verify", LAB)
def test_each_command_of_the_lab_in_the_table_is_understood(verify):
    proof = parse_proof(verify)
    assert proof is not None
    assert sum(map(bool, (proof.pitfall, proof.configs, proof.words))) == 1
    if proof.pitfall:
        assert find(proof.pitfall, load_pitfalls()) is not None
    if proof.words:
        assert proof.words[1:3] == ("claims", "--only")
        assert proof.words[3] in BY_ID


def test_two_settings_against_each_other_and_what_stands_behind_a_command():
    proof = parse_proof("gpuscope lab --compile reduce-overhead    against    gpuscope lab")
    assert proof is not None
    assert [one.compile for one in proof.configs] == ["reduce-overhead", "off"]
    proof = parse_proof("gpuscope lab --batch 2    shows its peak")
    assert proof is not None
    assert [one.batch for one in proof.configs] == [2]


@pytest.mark.parametrize(
    "verify",
    [
        "",
        "gpuscope devices",
        "gpuscope lab --no-such-toggle",
        "gpuscope lab --batch many",
        "gpuscope lab --help",
        "rm -rf /",
        "gpuscope lab 'unclosed",
        "the next run: alloc_retries stays at 0",
        "gpuscope lab pitfall a b",
    ],
)
def test_anything_else_is_no_proof_of_the_lab(verify):
    assert parse_proof(verify) is None


def finding(verify: str = "") -> Finding:
    return Finding(
        pitfall="num-workers",
        cause="a",
        title="t",
        severity="info",
        confidence="likely",
        verify=verify,
        evidence=(Evidence("e"),),
    )


def test_the_findings_own_command_goes_first_then_that_of_its_pitfall():
    row = table.load()["num-workers"]
    own = proof_of(finding("gpuscope lab --batch 4"), row)
    assert isinstance(own, Proof)
    assert own.configs
    other = proof_of(finding("gpuscope doctor 7    shows its steps"), row)
    assert isinstance(other, Proof)
    assert other.pitfall == "num-workers"
    assert (
        proof_of(finding("gpuscope doctor 7    shows its steps"), None)
        == "outside the Lab: gpuscope doctor 7"
    )
    past = proof_of(finding("gpuscope doctor 7    shows its steps"), None, Path("a run.gsr"))
    assert past == "outside the Lab: gpuscope doctor 'a run.gsr'", "no process of the past"
    assert proof_of(finding(), None) == NO_PROOF
