"""Read TOML on every Python of the viewer.

The standard library reads it; on 3.10 tomli does, which is the same reader.
"""

from __future__ import annotations

try:
    from tomllib import TOMLDecodeError, loads  # type: ignore[import-not-found, unused-ignore]  # mypy looks at 3.10
except ModuleNotFoundError:
    from tomli import TOMLDecodeError, loads

__all__ = ["TOMLDecodeError", "loads"]
