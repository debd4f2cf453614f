"""A request as the words of a command line, in the toggles' own names."""

from __future__ import annotations

from dataclasses import fields

from .request import Request

_YES_NO = ("foreach", "fused", "set_to_none", "tf32", "cudnn_benchmark", "deterministic")


def changed_flags(before: Request, after: Request) -> str:
    """The flags that make ``after`` of ``before``: "--batch 4 --accumulate 2"."""
    words: list[str] = []
    for field in fields(Request):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            words += _words(field.name, new)
    return " ".join(words)


def _words(name: str, value: object) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if name == "checkpoint":
        if value in (0, 1):
            return ["--checkpoint" if value else "--no-checkpoint"]
        return ["--checkpoint-every", str(value)]
    if name in _YES_NO:
        return [] if value is None else [flag if value else flag.replace("--", "--no-", 1)]
    if name == "sharding":
        return ["--parallel", str(value)]
    if name == "ranks":
        return ["--nproc", str(value)]
    return [] if value is None else [flag, str(value)]
