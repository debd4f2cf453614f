"""Judge the environment of another host for ``gpuscope doctor``.

An agent there gathers the facts, and this process judges them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....doctor import environment
from ....doctor.finding import Report
from ....wire.clean import clean
from ....wire.environment import Facts

if TYPE_CHECKING:
    from ....store.source import Source

MAX_TEXT, MAX_ITEMS, MAX_DEPTH = 4096, 4096, 8
MARGIN_SECONDS, TORCH_SECONDS = 3.0, 10.0


async def examine(source: Source, host: str, ask_torch: bool, timeout: float) -> Report:
    """Return the report on the environment of ``host``; each finding names the host.

    Facts that could not be read are listed as problems.
    """
    from ....store.pending_requests import SourceError

    seconds = timeout + MARGIN_SECONDS + (TORCH_SECONDS if ask_torch else 0.0)
    try:
        answer = (
            await source.request("environment", {"of": "host", "torch": ask_torch}, seconds)
        ).value
        facts = facts_of(answer)
    except SourceError as error:
        return _not_had(host, clean(error.what, 300))
    except ValueError as error:
        return _not_had(host, clean(str(error), 300))
    return with_host_name(environment.examine(facts), host)


def _not_had(host: str, why: str) -> Report:
    return Report(
        problems=(f"{host}: its environment (driver, host, torch) could not be examined: {why}",)
    )


def facts_of(answer: Mapping[str, Any]) -> Facts:
    """Convert an agent's answer to facts. Raises ValueError if it is malformed."""
    import msgspec

    try:
        return msgspec.convert(_cleaned(answer.get("facts"), MAX_DEPTH), Facts)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"its answer is malformed ({error}).") from None


def _cleaned(value: Any, depth: int) -> Any:
    if depth < 0:
        raise ValueError("its answer is nested too deeply.")
    if isinstance(value, str):
        return clean(value, MAX_TEXT)
    if isinstance(value, list):
        return [_cleaned(one, depth - 1) for one in value[:MAX_ITEMS]]
    if isinstance(value, dict):
        kept = list(value.items())[:MAX_ITEMS]
        return {clean(str(name), 200): _cleaned(one, depth - 1) for name, one in kept}
    return value


def with_host_name(report: Report, host: str) -> Report:
    """The same, saying of which host."""
    return replace(
        report,
        findings=tuple(
            replace(one, where=f"{host}, {one.where}" if one.where else host)
            for one in report.findings
        ),
        problems=tuple(f"{host}: {text}" for text in report.problems),
        examined=tuple(f"{host}: {text}" for text in report.examined),
    )
