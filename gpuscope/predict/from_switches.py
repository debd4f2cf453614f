"""Turn switches by name, from a command line or a file, into a request for a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import UsageError
from ..lab.toggles import BY_NAME, PREDICTED, fsdp_given
from . import deepspeed
from .adapters import LAYOUTS, parse_lora
from .request import CUDA_GRAPHS, SEARCHING, SHARDINGS, TASKS, Request
from .serving import parse_serving

TOGGLES = tuple(
    toggle.name for name, toggle in PREDICTED.items() if name not in ("model", "sharding")
)
"""The Lab's toggles that matter for a prediction and mean the same here."""
MORE = (
    "checkpoint_every", "parallel", "task", "sequence", "resolution", "lora", "quantize",
    "serve", "deepspeed",
)  # fmt: skip
"""Switches that only a prediction has, or that have other values there."""
MOST_OF_ANY = (1 << 24) - 1
"""The largest number of tokens, pixels and blocks."""


def request_of(model: str, switches: Mapping[str, Any], architecture: str) -> Request:
    """Return the request for ``model`` with the given switches, those that are set.

    Raises :class:`UsageError` for a value or a combination that cannot be.
    """
    given = {name: BY_NAME[name].parse(switches[name]) for name in TOGGLES if name in switches}
    for name in ("settings", "doubts"):
        given.pop(PREDICTED[name].name, None)
    ranks = given.pop(PREDICTED["ranks"].name, None)
    if ":" not in model:
        # The lab's own default is off.
        given.setdefault("tf32", BY_NAME["tf32"].default)
    every = _number(switches, "checkpoint_every")
    given["checkpoint"] = every if every is not None else int(bool(given.pop("checkpoint", False)))
    parallel = _one_of(switches, "parallel", SHARDINGS) or "none"
    task = _one_of(switches, "task", tuple(TASKS))
    if task is not None and not model.startswith("hf:"):
        raise UsageError("--task is for a transformers config: --hf-config DIR")
    lora = str(switches.get("lora") or "")
    quantize = _one_of(switches, "quantize", LAYOUTS) or ""
    if (lora or quantize) and not model.startswith("hf:"):
        raise UsageError("--lora and --quantize are for a transformers config: --hf-config DIR")
    if lora:
        parse_lora(lora)
    serving = parse_serving(str(switches["serve"])) if switches.get("serve") else None
    if serving is not None:
        given.update(batch=serving.batch, serve=serving.cache, new=serving.new)
        switches = {**switches, "sequence": serving.context}
        names = ("amp", "accumulate", "optimizer", "lora", "checkpoint")
        if (
            not model.startswith("hf:")
            or parallel != "none"
            or any(switches.get(name) for name in names)
        ):
            raise UsageError(
                "--serve is for a transformers config that generates text: --hf-config DIR, "
                "without the settings of a training"
            )
    elif quantize and not lora:
        raise UsageError(
            "--quantize is for weights that are not trained: add --lora r=16, or --serve batch=1"
        )
    path = str(switches.get("deepspeed") or "")
    if path:
        given |= _deepspeed(path, int(ranks) if ranks else 2, given, switches)
    elif parallel == "none" and ranks not in (None, 1):
        kinds = ", ".join(SHARDINGS[1:])
        raise UsageError(f"--nproc is the number of ranks: add --parallel, one of {kinds}")
    request = Request(
        model,
        task=task,
        lora=lora,
        quantize=quantize,
        compile=serving is None and _compile(switches) != "off",
        cuda_graphs=serving is None and _compile(switches) in CUDA_GRAPHS,
        max_autotune=serving is None and _compile(switches) in SEARCHING,
        sequence=_number(switches, "sequence"),
        resolution=_number(switches, "resolution"),
        sharding=parallel,
        ranks=int(ranks) if ranks else (2 if path or parallel != "none" else 1),
        architecture=architecture,
        **given,  # type: ignore[arg-type]  # the toggles' own parsers made them
    )
    if parallel != "fsdp" and (theirs := fsdp_given(request)):
        flags = ", ".join(BY_NAME[name].flag for name in theirs)
        raise UsageError(f"{flags} says how FSDP2 shards: add --parallel fsdp")
    return request


def _deepspeed(
    path: str, ranks: int, given: Mapping[str, Any], switches: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a file of DeepSpeed says, in the words of a request."""
    zero = deepspeed.read(path, ranks)
    clashing = [
        flag
        for flag, on in (
            ("--parallel", (switches.get("parallel") or "none") != "none"),
            ("--serve", switches.get("serve")),
            ("--amp", given.get("amp", "off") != "off"),
            ("--compile", _compile(switches) != "off"),
            ("--channels-last", given.get("channels_last")),
        )
        if on
    ]
    if clashing:
        raise UsageError(
            f"{', '.join(clashing)} cannot be combined with --deepspeed: the file says how ranks "
            "share the model and in which type it computes"
        )
    found: dict[str, Any] = {"deepspeed": zero.text()}
    for name, own in (("batch", zero.batch), ("accumulate", zero.accumulate)):
        asked = given.get(name) if switches.get(name) is not None else None
        if own is not None and asked not in (None, own):
            raise UsageError(f"--{name} {asked}, but {path} says {own}: change one of the two")
        if own is not None:
            found[name] = own
    if zero.optimizer and given.get("optimizer"):
        raise UsageError(f"--optimizer, but {path} names {zero.optimizer}: leave one of them out")
    return found


def _compile(switches: Mapping[str, Any]) -> str:
    return str(BY_NAME["compile"].parse(switches.get("compile") or "off"))


def _number(switches: Mapping[str, Any], name: str) -> int | None:
    value = switches.get(name)
    if value is None:
        return None
    if type(value) is not int or not 1 <= value <= MOST_OF_ANY:
        raise UsageError(f"{name} must be a whole number from 1 to {MOST_OF_ANY}")
    return value


def _one_of(switches: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str | None:
    value = switches.get(name)
    if value is not None and value not in choices:
        raise UsageError(f"--{name} must be one of: {', '.join(choices)}")
    return value
