"""Answer ``environment`` with ``of: "host"``: the doctor's facts about this agent's host.

With ``args.torch``, torch itself is asked too, in a child process. Of the environment variables,
only those that a rule of the doctor looks at leave the host.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, Dict, Mapping, Union

from ..probe.identity import ENVIRONMENT
from ..wire import frames
from ..wire.codec import WireError, encode

VARIABLES = frozenset((
    *ENVIRONMENT, "LD_LIBRARY_PATH", "SLURM_NNODES", "NCCL_ASYNC_ERROR_HANDLING",
    "NCCL_BLOCKING_WAIT", "NCCL_DESYNC_DEBUG", "NCCL_ENABLE_TIMING", "NCCL_TIMEOUT",
    "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_ENABLE_TIMING", "GLOO_SOCKET_IFNAME",
))  # fmt: skip
"""Allow-list of variables, because the rest of an environment contains tokens and keys."""
MAX_VARIABLE_CHARS = 4096
DRIVER_SECONDS = (0.2, 30.0)
MARGIN_SECONDS = 1.0


def answer(request: frames.Request) -> Union[frames.Result, frames.Error]:
    """Answer the request; never raises. It may wait for the driver, and 10 s more for torch."""
    try:
        from . import environment, environment_torch

        ask_torch = request.args.get("torch") is True
        seconds = (
            request.deadline
            - MARGIN_SECONDS
            - (environment_torch.TORCH_SECONDS if ask_torch else 0.0)
        )
        least, most = DRIVER_SECONDS
        facts = environment.gather(ask_torch, min(max(seconds, least), most), running=True)
        kept = {
            name: text[:MAX_VARIABLE_CHARS]
            for name, text in facts.environment.items()
            if name in VARIABLES
        }
        result = frames.Result(request.id, {"facts": plain(replace(facts, environment=kept))})
        encode(result)
    except WireError as error:
        return frames.Error(
            request.id, "failed", f"what was gathered cannot be sent: {error}"[:300]
        )
    except Exception as error:  # a Python that lacks a module, or a /proc that is missing
        return frames.Error(
            request.id, "failed", f"gathering it failed: {type(error).__name__}: {error}"[:300]
        )
    return result


def plain(value: Any) -> Any:
    """Return facts as JSON objects; unknown ones are left out."""
    if is_dataclass(value):
        found: Dict[str, Any] = {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        return {name: one for name, one in found.items() if one is not None}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return value
