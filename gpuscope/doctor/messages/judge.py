"""Bring all rules together: messages, figures and circumstances become findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..finding import Abstained, Finding
from . import causes, figures, growth, loss_turn, oom, own_numbers, rule, smi, symptoms, tables
from . import scene as scenes
from .oom import OutOfMemory
from .predicted import add_effects
from .scene import MessageContext
from .text import Log
from .votes import Vote, choose_best, finding

MOST_REFUSALS = 4
"""How many out-of-memory errors of one log are judged: a program may catch them in a loop."""
_PINNED = ("host.pinned",)


def judge(
    log: Log | None, symptom: Log | None = None
) -> tuple[tuple[Finding, ...], tuple[Abstained, ...]]:
    """Return the findings, best first, and the abstentions, of a log, of a symptom, or of both.

    The symptom is in the user's own words. Together with a log it adds circumstances; alone it
    supports a warning at most.
    """
    says = tables.circumstances()
    texts = [text for text in (log, symptom) if text is not None]
    scenes_read = [scenes.read(text, says) for text in texts]
    scene = scenes_read[0]
    for other in scenes_read[1:]:
        scene.facts = {**other.facts, **scene.facts}
    votes: list[Vote] = []
    refusals: list[OutOfMemory] = []
    if log is not None:
        votes, refusals = _votes(log, scene, described=False)
    if symptom is not None:
        described, refused = _votes(symptom, scene, described=True)
        votes += [
            replace(vote, severity="warning") if vote.severity == "problem" else vote
            for vote in described
        ]
        refusals += refused
        if not votes and not refusals:
            votes += symptoms.plain_votes(symptom)
    chosen = choose_best(votes)
    found = (own_numbers.filled(finding(vote), texts[0]) for vote in chosen)
    return add_effects(found, refusals), tuple(_abstentions(chosen, refusals))


def _votes(
    log: Log, scene: MessageContext, described: bool
) -> tuple[list[Vote], list[OutOfMemory]]:
    """Return the votes of one text and the out-of-memory errors in it.

    ``described`` says that a person wrote the text, and not a program.
    """
    grown = growth.describe_growth(log)
    if grown:
        scene.facts.setdefault("growth", grown)
    votes = list(rule.apply(tables.rules(), log, scene, described))
    if not described:
        votes += loss_turn.votes(log)
    refusals = oom.find(log)
    tries = len(log.find_all("tried to allocate", 50))
    if tries > 1 and scene.any("rerun", "notebook"):
        says = tables.circumstances()["repeated"]
        scene.facts.setdefault("repeated", says.format(tries=tries))
    if any(one.form == "async" for one in refusals):
        scene.facts.setdefault("comfyui", tables.circumstances()["many-models"])
    if not any(vote.cause in _PINNED for vote in votes):
        for one in _device_refusals(refusals, votes)[-MOST_REFUSALS:]:
            votes += causes.votes(log, scene, one)
    if described or not any(vote.confidence != "prior" for vote in votes):
        votes += symptoms.votes(log, described)
    if not votes:
        votes += smi.votes(log)
    if not votes and grown:
        votes += figures.votes("memory.growth", ((grown, log.source),))
    if not votes and not refusals and not described:
        # A description that mentions OOM was already judged as a symptom.
        refusals = oom.find_word(log)
        for one in refusals:
            votes += causes.votes(log, scene, one)
    return votes, refusals


def _device_refusals(refusals: list[OutOfMemory], votes: list[Vote]) -> list[OutOfMemory]:
    """Return the errors about a device's memory, not about the host's.

    An error without numbers is left out where a library's own message explains it better.
    """
    explained = any(
        vote.cause.startswith(("nccl.", "vllm.", "host.")) and vote.confidence != "prior"
        for vote in votes
    )
    return [
        one for one in refusals if one.backend != "cpu" and not (one.form == "bare" and explained)
    ]


def _abstentions(chosen: list[Vote], refusals: list[OutOfMemory]) -> Iterator[Abstained]:
    """Yield what the messages leave open, each with what would decide it."""
    device = [one for one in refusals if one.backend not in ("cpu", "mps")]
    complete = any(one.complete for one in device)
    if device and not complete:
        yield tables.abstentions()["no-figures"]
    if complete and not any(vote.confidence == "definite" for vote in chosen):
        yield tables.abstentions()["no-trend"]
    if any(vote.cause.startswith("disguise.cublas") for vote in chosen):
        yield tables.abstentions()["index-behind-cublas"]
    if any(vote.cause == "slow.plain" for vote in chosen):
        yield tables.abstentions()["time-not-measured"]
