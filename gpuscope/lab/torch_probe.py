"""Ask the Python that has torch what machine it sees.

A child process does this, because the viewer never loads torch.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from ..process import child
from .config import LabConfig
from .device_selection import cores
from .rules import RunFacts

ASK_SECONDS = 120.0
"""The limit is long because ``import torch`` from a network disk takes its time."""
_QUESTION = """
import json, os, platform, shutil, importlib.util
import torch
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [torch.cuda.get_device_name(i) for i in range(gpus)]
capability = list(torch.cuda.get_device_capability(0)) if gpus else None
try:
    free, total = zip(*(torch.cuda.mem_get_info(i) for i in range(gpus))) if gpus else (None, None)
except Exception:
    free = total = None
cxx = bool(shutil.which(os.environ.get("CXX") or "g++") or (not os.environ.get("CXX") and shutil.which("clang++")))
cc = bool(shutil.which(os.environ.get("CC") or "cc") or (not os.environ.get("CC") and shutil.which("gcc")))
triton = importlib.util.find_spec("triton") is not None
print(json.dumps({"gpus": gpus, "names": names, "capability": capability, "free": free, "total": total,
                  "python": platform.python_version(), "cuda": torch.version.cuda, "threads": torch.get_num_threads(),
                  "torch": str(torch.__version__), "folder": os.path.dirname(torch.__file__),
                  "cxx": cxx, "cuda_compiler": cc and triton}))
"""  # noqa: E501


class Machine:
    """What a child has reported; ``problem`` says why it reported nothing."""

    def __init__(self, answer: dict[str, Any], problem: str = "") -> None:
        self._answer = answer
        self.problem = problem

    @property
    def answer(self) -> dict[str, Any]:
        """The answer as it came; empty if there is a problem."""
        return dict(self._answer)

    def facts(self, config: LabConfig) -> RunFacts:
        """Return the facts for :func:`rules.check` of the device that ``config`` asks for.

        What is unknown is None.
        """
        gpus = self._answer.get("gpus")
        cuda = config.device == "cuda" or (config.device == "auto" and bool(gpus))
        facts = RunFacts(
            "cuda" if cuda else "cpu",
            gpus=gpus,
            torch_version=self._answer.get("torch"),
            torch_folder=self._answer.get("folder"),
            cores=cores(),
        )
        if not cuda:
            return replace(facts, has_compiler=self._answer.get("cxx"))
        names, capability = self._answer.get("names"), self._answer.get("capability")
        return replace(
            facts,
            gpu_name=names[0] if names else None,
            capability=(capability[0], capability[1]) if capability else None,
            free_bytes=self._answer.get("free"),
            has_compiler=self._answer.get("cuda_compiler"),
        )


def ask(python: str) -> Machine:
    """Ask this Python, which takes the seconds that ``import torch`` takes.

    This never raises: a child that fails has reported nothing.
    """
    environ = {**os.environ, "PYTHONSAFEPATH": "1"}
    try:
        output = child.ask([python, "-c", _QUESTION], ASK_SECONDS, environ)
    except OSError as error:
        return Machine({}, f"{python} cannot be started: {error.strerror}")
    if output.code is None:
        return Machine({}, f"{python} {output.failure}")
    try:
        answer = json.loads(output.output.splitlines()[-1])
        if isinstance(answer, dict):
            return Machine(answer)
    except (ValueError, IndexError):
        pass
    return Machine(
        {}, f"{python} could not import torch: {output.last_words or 'it printed nothing'}"
    )
