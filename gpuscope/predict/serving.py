"""Read how a model generates text: how many sequences at a time, and how long they become.

Only the standard library is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

CACHES = ("dynamic", "static")
"""The caches of keys and values: one that grows with each token, as transformers has it by default,
and one that is allocated whole.
"""
NEW_TOKENS = 5
CONTEXT = 4096
_FORM = "batch=8,context=4096, and with cache=static a cache that is allocated whole"
_MOST = (1 << 24) - 1


@dataclass(frozen=True, slots=True)
class Serving:
    """``batch`` sequences at a time, each of at most ``context`` tokens, prompt and answer."""

    batch: int = 1
    context: int = CONTEXT
    cache: str = CACHES[0]


def parse_serving(text: str) -> Serving:
    """Read ``batch=8,context=4096,cache=static``. Raises :class:`UsageError`."""
    values: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name in values or name not in ("batch", "context", "cache"):
            raise UsageError(f"--serve cannot be {text[:60]!r}. It takes {_FORM}")
        values[name] = value.strip()
    cache = values.get("cache", CACHES[0])
    if cache not in CACHES:
        raise UsageError(f"--serve: the cache is one of {', '.join(CACHES)}")
    numbers = {}
    for name, least in (("batch", 1), ("context", 4)):
        number = values.get(name)
        if number is None:
            continue
        if not number.isdigit() or not least <= int(number) <= _MOST:
            raise UsageError(f"--serve: {name} is a whole number of at least {least}: {_FORM}")
        numbers[name] = int(number)
    return Serving(cache=cache, **numbers)
