"""Write the result as SARIF 2.1.0, which code hosts show at the lines of a pull request.

A budget is reported at its line in the configuration. If the changed line that broke it is known,
the result is reported there, and the budget is a related location.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from .. import __version__
from ..wire.clean import clean
from .outcome import BudgetVerdict, Checked, Outcome
from .text import verdict_lines

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
LEVELS = {"problem": "error", "unchecked": "error", "warning": "warning", "info": "note"}
RULES = {
    "predicted": "The training could not be predicted",
    "fits": "The training must fit on its GPU",
    "peak": "The GPU's memory must stay within its budget",
    "allocated": "The tensors' peak must stay within its budget",
    "regression": "The tensors' peak must not grow over the baseline",
    "baseline": "The baseline could not be compared",
    "step_time": "A step must stay within its time",
    "slower": "A step must not take longer than in the baseline",
}


def document(checked: Checked) -> dict[str, Any]:
    """Return the log of one run."""
    results = [*_budgets(checked), *_scripts(checked)]
    rules: dict[str, str] = {}
    for result, title in results:
        rules.setdefault(result["ruleId"], title)
    places = list(rules)
    for result, _ in results:
        result["ruleIndex"] = places.index(result["ruleId"])
    notes = [{"level": "error", "message": {"text": clean(text)}} for text in checked.problems]
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gpuscope",
                        "version": __version__,
                        "semanticVersion": __version__,
                        "rules": [
                            {"id": rule, "shortDescription": {"text": title}}
                            for rule, title in rules.items()
                        ],
                    }
                },
                "invocations": [
                    {
                        "executionSuccessful": not notes,
                        "toolExecutionNotifications": notes,
                    }
                ],
                "originalUriBaseIds": {"SRCROOT": {"description": {"text": "the repository"}}},
                "columnKind": "unicodeCodePoints",
                "results": [result for result, _ in results],
            }
        ],
    }


def _budgets(checked: Checked) -> Iterator[tuple[dict[str, Any], str]]:
    file = os.path.relpath(checked.configuration.file.resolve(), checked.root)
    for outcome in checked.outcomes:
        for verdict in outcome.verdicts:
            if verdict.severity != "ok":
                rule = f"budget.{verdict.kind}"
                yield _budget(outcome, verdict, rule, file), RULES[verdict.kind]


def _budget(outcome: Outcome, verdict: BudgetVerdict, rule: str, file: str) -> dict[str, Any]:
    rows = [clean(row) for row in verdict_lines(outcome, verdict)]
    budget = _place(file, verdict.line)
    causes = outcome.change.causes if outcome.change else ()
    blamed = [_place(one.file, one.line) for one in causes] if verdict.severity == "problem" else []
    result = _result(
        rule, verdict.severity, "\n".join(rows), blamed[0] if blamed else budget,
        f"{outcome.training.name}:{verdict.kind}",
    )  # fmt: skip
    others = [*blamed[1:], *([budget] if blamed else [])]
    if others:
        result["relatedLocations"] = [
            {"id": number, **place} for number, place in enumerate(others, 1)
        ]
    return result


def _scripts(checked: Checked) -> Iterator[tuple[dict[str, Any], str]]:
    for one in checked.findings:
        finding = one.finding
        rows = [finding.title, *(evidence.text for evidence in finding.evidence)]
        rows += [fix.title for fix in finding.fixes[:1]]
        text = "\n".join(clean(row) for row in rows)
        place = _place(one.file, one.line)
        key = f"{one.file}:{finding.cause}:{finding.title}"
        title = f"gpuscope doctor --explain {finding.pitfall}"
        yield _result(f"script.{finding.pitfall}", finding.severity, text, place, key), title


def _result(rule: str, severity: str, text: str, place: dict[str, Any], key: str) -> dict[str, Any]:
    """Return one result. Its fingerprint stays the same while lines move."""
    return {
        "ruleId": rule,
        "level": LEVELS[severity],
        "message": {"text": text},
        "locations": [place],
        "partialFingerprints": {"gpuscope/v1": sha256(key.encode()).hexdigest()[:32]},
    }


def _place(file: str, line: int) -> dict[str, Any]:
    uri = quote(PurePath(file).as_posix())
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "uriBaseId": "SRCROOT"},
            "region": {"startLine": max(1, line)},
        }
    }
