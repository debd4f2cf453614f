"""Rank the fixes of memory findings by the bytes they free.

This is ``gpuscope doctor … --predict 'MODULE:FACTORY --batch 16'``. With the model's factory, exact
figures can replace bounds: every fix is simulated (``gpuscope predict --what-if``), and the
findings about memory show how much it frees, with the error of that figure.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....doctor.finding import Effect, Finding, Fix, Report
from ....errors import UsageError
from ....predict.answer import Answer, TracedRequest, Tracer, Tried
from ....predict.report import with_error
from ....predict.request import CannotPredict
from ....text.units import amount_text as gib
from ....wire.clean import clean

FIXES: Mapping[str, tuple[str, ...]] = {
    "reduce-batch-size": ("batch-half",),
    "gradient-accumulation": ("accumulate", "batch-half"),
    "mixed-precision": ("bf16", "fp16"),
    "gradient-checkpointing": ("checkpoint",),
    "optimizer-state": ("sgd", "fused-optimizer"),
    "fsdp-or-zero": ("fsdp", "zero1"),
    "expandable-segments": ("expandable-segments",),
}
"""Pitfall → the simulated fixes that cure it; the first one with a result counts."""
MOST_FIXES = 5


def with_predictions(report: Report, words: str, tracer: Tracer | None = None) -> Report:
    """Return the report with what each fix would free for a model.

    ``words`` name the model in the form that ``gpuscope predict`` reads. What cannot be predicted
    is listed in ``problems``. Tests pass ``tracer``.
    """
    if not any(one.pitfall in FIXES for one in report.findings):
        return report
    try:
        answer = _ask(words, tracer)
    except CannotPredict as trouble:
        why = " ".join(clean(str(word), 300) for word in trouble.args[:2])
        return report + Report(problems=(f"Nothing was predicted. {why}",))
    except ValueError as error:
        return report + Report(
            problems=(f"--predict {clean(words, 100)}: {clean(str(error), 300)}",)
        )
    tried = [one for one in answer.what_if or () if one.freed > 0]
    findings, first = [], True
    for one in report.findings:
        if one.pitfall in FIXES:
            one = _with_effect(one, answer, tried, first)
            first = False
        findings.append(one)
    return replace(report, findings=tuple(findings))


def _with_effect(finding: Finding, answer: Answer, tried: Sequence[Tried], first: bool) -> Finding:
    """Return a finding with the simulated effect of its own fix.

    The first finding also gets the list of all fixes, with the one that frees most first.
    """
    by_key = {one.fix.key: one for one in tried}
    own = next((by_key[key] for key in FIXES[finding.pitfall] if key in by_key), None)
    if own is not None:
        finding = replace(
            finding, effect=Effect(text=_text(own, answer), bound="about", freed_bytes=own.freed)
        )
    if not first:
        return finding
    ranked = tuple(_fix(one, answer) for one in tried[:MOST_FIXES])
    return replace(finding, fixes=(*finding.fixes[:1], *ranked, *finding.fixes[1:]))


def _text(one: Tried, answer: Answer) -> str:
    before, after = one.subject_of(answer.prediction), one.subject_of(one.prediction)
    return f"{gib(one.freed)} GiB, predicted: {gib(before.bytes)} GiB, then {with_error(after)}"


def _fix(one: Tried, answer: Answer) -> Fix:
    change = one.fix.change
    setting = change.startswith("PYTORCH_")
    flags = change.startswith("--")
    return Fix(
        title=f"{one.fix.title}{f' ({change})' if flags else ''}",
        code="" if setting or flags else change,
        environment=change if setting else "",
        effect=_text(one, answer),
        cost=one.fix.cost,
    )


def _ask(words: str, tracer: Tracer | None) -> Answer:
    """Raises :class:`CannotPredict`, and ValueError for words that make no question."""
    from ....predict.child import Tracer as Child
    from ..predict import card as predict_card
    from ..predict import verb as predict_verb

    parser = _Parser(add_help=False)
    predict_verb.add_arguments(parser)
    args = parser.parse_args(shlex.split(words))
    try:
        model = predict_verb.model_of(args, list(args.target))
        card = predict_card.card(args)
        request = predict_verb.request_of(args, model, card)
        settings = predict_verb.settings_of(args)
    except UsageError as error:
        raise ValueError(str(error)) from None
    with Child() as child:
        asking = TracedRequest(
            request,
            tracer or (lambda one: child.trace(one, args.timeout)),
            card,
            settings,
            args.timeout,
        )
        asking.find_fixes(predict_card.ranks(args))
        return asking.finish()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]  # it returns by raising
        raise ValueError(message)
