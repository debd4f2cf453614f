"""Read how a model generates text: how many sequences at a time, and how long they become.

Only the standard library is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UsageError

CACHES = ("dynamic", "static")
"""The caches of keys and values: one that grows with each token, as transformers has it by default,
and one that is allocated whole.
"""
CONTEXT = 4096
NEW_TOKENS = 5
"""Of an answer, unless it is given: the prompt is then nearly the whole context."""
_LEAST = {"batch": 1, "context": 4, "new": 1}
_FORM = (
    "batch=8,context=4096, with new=256 for an answer of 256 of these tokens, and with "
    "cache=static for a cache that is allocated whole"
)
_MOST = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class Serving:
    """``batch`` sequences at a time, each of ``context`` tokens.

    The last ``new`` of them are the answer.
    """

    batch: int = 1
    context: int = CONTEXT
    new: int = NEW_TOKENS
    cache: str = CACHES[0]


def parse_serving(text: str) -> Serving:
    """Read ``batch=8,context=4096,cache=static``. Raises :class:`UsageError`."""
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name in values or name not in (*_LEAST, "cache"):
            raise UsageError(f"--serve cannot be {text[:60]!r}. It takes {_FORM}")
        values[name] = value.strip()
    cache = values.get("cache", CACHES[0])
    if cache not in CACHES:
        raise UsageError(f"--serve: the cache is one of {', '.join(CACHES)}")
    numbers = {}
    for name, least in _LEAST.items():
        number = values.get(name)
        if number is None:
            continue
        if not number.isdigit() or not least <= int(number) <= _MOST:
            raise UsageError(f"--serve: {name} is a whole number of at least {least}: {_FORM}")
        numbers[name] = int(number)
    found = Serving(cache=cache, **numbers)
    if "new" not in numbers:
        found = replace(found, new=min(NEW_TOKENS, found.context - 1))
    if found.new >= found.context:
        raise UsageError(
            f"--serve: new={found.new} leaves no prompt in a context of {found.context} tokens, "
            "which counts both: a larger context, or fewer new tokens"
        )
    return found
