"""Workers of the lab on a GPU, in forks of one process that has imported torch.

What runs in one call runs at the same time: all but what is timed may.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.fakes.forking import ROOT, Forked, script

Toggles = dict[str, Any]
SECONDS = 200


def plain_environment(**more: str) -> dict[str, str]:
    """Return ours without settings of the allocator, and with the checkout importable."""
    kept = {name: value for name, value in os.environ.items() if "ALLOC_CONF" not in name}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def _start(toggles: Toggles, environ: dict[str, str], cwd: str) -> Forked:
    config = json.dumps({"device": "cuda", **toggles})
    return Forked(script("gpuscope.lab.worker", "--config", config), environ, cwd=cwd)


def workers(
    *every: Toggles, cwd: str = str(ROOT), **environ: str
) -> list[tuple[list[dict[str, Any]], str]]:
    """All records of each worker, and its stderr."""
    started = [_start(toggles, plain_environment(**environ), cwd) for toggles in every]
    try:
        with ThreadPoolExecutor(len(started)) as pool:
            ended = list(pool.map(lambda one: one.communicate(timeout=SECONDS), started))
    finally:
        for one in started:
            one.kill()
    return [([json.loads(line) for line in out.splitlines()], errors) for out, errors in ended]


def documents(*every: Toggles) -> list[dict[str, Any]]:
    """The summary of each worker; all must end well."""
    found = []
    for records, errors in workers(*every):
        assert records, errors
        assert records[-1]["kind"] == "ended", errors or records[-1]
        found.append(dict(records[-1]["summary"]))
    return found


def document(**toggles: object) -> dict[str, Any]:
    """The summary of one worker."""
    return documents(toggles)[0]


def losses(found: dict[str, Any]) -> list[float]:
    return [loss for _, loss in found["loss_curve"]]


def level(found: dict[str, Any]) -> float:
    """The mean loss of the last ten steps: that of one batch is noise."""
    return sum(losses(found)[-10:]) / 10
