"""Write the result as JUnit XML, which CI systems show as tests: one for each budget."""

from __future__ import annotations

from xml.etree import ElementTree

from ..wire.clean import clean
from .outcome import BudgetVerdict, Checked, Outcome
from .text import verdict_lines

SUITE = "gpuscope check"
_MARKS = {"problem": "failure", "unchecked": "error"}


def document(checked: Checked) -> bytes:
    """Return the document, in UTF-8.

    A problem is a failure, and what could not be checked an error. A warning passes, with its text
    as output, because it decides nothing.
    """
    suite = ElementTree.Element("testsuite", name=SUITE)
    for outcome in checked.outcomes:
        for verdict in outcome.verdicts:
            _budget(suite, outcome, verdict)
    for one in checked.findings:
        case = _case(suite, f"script {one.file}", f"{one.finding.cause} line {one.line}", 0.0)
        text = f"{one.file}:{one.line} {one.finding.title}"
        _result(case, one.finding.severity, one.finding.title, text)
    for number, text in enumerate(checked.problems, 1):
        _result(_case(suite, "not checked", str(number), 0.0), "unchecked", text, text)
    for name in ("failure", "error"):
        count = sum(case.find(name) is not None for case in suite)
        suite.set(f"{name}s", str(count))
    suite.set("tests", str(len(suite)))
    suite.set("skipped", "0")
    suite.set("time", f"{checked.seconds:.3f}")
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.indent(whole)
    content: bytes = ElementTree.tostring(whole, encoding="utf-8", xml_declaration=True)
    return content


def _budget(suite: ElementTree.Element, outcome: Outcome, verdict: BudgetVerdict) -> None:
    seconds = outcome.seconds if verdict is outcome.verdicts[0] else 0.0
    case = _case(suite, outcome.training.name, verdict.kind.replace("_", " "), seconds)
    rows = verdict_lines(outcome, verdict)
    _result(case, verdict.severity, verdict.text, "\n".join(rows))


def _case(suite: ElementTree.Element, group: str, name: str, seconds: float) -> ElementTree.Element:
    values = {"classname": clean(group, 300), "name": clean(name, 300), "time": f"{seconds:.3f}"}
    return ElementTree.SubElement(suite, "testcase", values)


def _result(case: ElementTree.Element, severity: str, message: str, text: str) -> None:
    cleaned = "\n".join(clean(line) for line in text.split("\n"))
    mark = _MARKS.get(severity)
    if mark:
        values = {"message": clean(message, 600), "type": severity}
        ElementTree.SubElement(case, mark, values).text = cleaned
    else:
        ElementTree.SubElement(case, "system-out").text = cleaned
