"""Read the texts of findings and of open questions from the folder ``findings``.

Each group of rules has a file with titles, fixes, and the questions on which its rules abstain. The
rules themselves supply evidence and figures: a field such as ``{held}`` in a text is replaced by
the figure of that name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from .. import toml
from ..checked_rows import TableError, checked
from .finding import Abstained, Confidence, Finding, Fix, Severity

FOLDER = Path(__file__).with_name("findings")
COMMON = "common"
"""The file with the fixes that every group of rules may use."""
_FIELD = re.compile(r"\{([a-z_]+)\}")
_FIX_TEXTS = ("title", "before", "code", "environment", "command")
_REMARKS = ("effect", "cost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The texts of one finding.

    ``cause`` is the ``id`` where the row does not name a cause; ``fixes`` are ids of fixes. ``why``
    and ``gpu_only`` are for findings in scripts: the comment on the quoted code, and whether it is
    a mistake only where the training runs on a GPU. Rules may be less or more severe and sure than
    their row says.
    """

    id: str
    pitfall: str
    title: str
    severity: Severity = "warning"
    confidence: Confidence = "definite"
    cause: str = ""
    verify: str = ""
    why: str = ""
    gpu_only: bool = False
    fixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Abstention:
    """The text for a question that a rule cannot decide.

    ``missing`` says what would decide it. ``why`` fills the field ``{why}`` where the rule gives no
    reason.
    """

    id: str
    pitfall: str
    missing: str
    why: str = ""


class _Rows(NamedTuple):
    findings: dict[str, Wording]
    fixes: dict[str, Fix]
    abstentions: dict[str, Abstention]


class Wordings:
    """The wordings of one room, read and checked when the first is asked for.

    An error in a file then raises :class:`TableError`.
    """

    def __init__(self, room: str) -> None:
        self.room = room

    @cached_property
    def findings(self) -> dict[str, Wording]:
        """Every finding of the room by its id."""
        return self._read.findings

    @cached_property
    def fix_rows(self) -> dict[str, Fix]:
        """Every fix of the room by its id, with its fields not yet filled in."""
        return self._read.fixes

    @property
    def abstentions(self) -> dict[str, Abstention]:
        """Every abstention of the room by its id."""
        return self._read.abstentions

    def abstained(self, name: str, **figures: object) -> Abstained:
        """Return the abstention with this id, filled in with figures.

        Raises :class:`ValueError` for a figure that is None, unless it is ``why``.
        """
        row = self.abstentions[name]
        missing = fill(row.missing, {**figures, "why": figures.get("why") or row.why or None})
        if missing is None:
            raise ValueError(f"{name}: a figure is missing in {row.missing}")
        return Abstained(pitfall=row.pitfall, missing=missing)

    def finding(
        self,
        name: str,
        figures: Mapping[str, object] | None = None,
        fixes: Sequence[Fix] | None = None,
        **rest: Any,
    ) -> Finding:
        """Return the finding with this id, filled in with figures.

        ``fixes`` replace those of the row. ``rest`` is what the rule decides: evidence, where and
        rank; severity and confidence too where they are not those of the row.
        """
        row = self.findings[name]
        given = figures or {}
        return Finding(
            **{
                "pitfall": row.pitfall,
                "cause": row.cause or row.id,
                "severity": row.severity,
                "confidence": row.confidence,
                "title": fill(row.title, given),
                "verify": fill(row.verify, given) or "",
                "fixes": tuple(self.fixes(row.fixes, given) if fixes is None else fixes),
                **rest,
            }
        )

    def fixes(self, names: Sequence[str], figures: Mapping[str, object]) -> list[Fix]:
        """Return the fixes with these ids, filled in with figures.

        An effect or cost whose figure is None is left out. If any other text of a fix lacks a
        figure, the whole fix is left out.
        """
        found = []
        for row in map(self.fix_rows.__getitem__, names):
            texts = {key: fill(getattr(row, key), figures) for key in _FIX_TEXTS}
            remarks = {key: fill(getattr(row, key), figures) or "" for key in _REMARKS}
            if None not in texts.values():
                found.append(replace(row, **{**texts, **remarks}))  # type: ignore[arg-type]
        return found

    @cached_property
    def _read(self) -> _Rows:
        rows = _Rows({}, {}, {})
        for name in (COMMON, self.room):
            _read(FOLDER / f"{name}.toml", rows)
        return rows


def _read(path: Path, rows: _Rows) -> None:
    """Adds the rows of one file."""
    try:
        document = toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError) as error:
        raise TableError(f"{path.name} cannot be read: {error}") from None
    place = "its keys"
    try:
        if set(document) - {"fix", "finding", "abstention"}:
            raise ValueError(f"are fix, finding and abstention, not {', '.join(document)}")
        for row in document.get("fix", ()):
            place = f"fix {row.get('id')}"
            _add(
                rows.fixes,
                row.get("id"),
                Fix(**checked({key: row[key] for key in row if key != "id"}, Fix)),
            )
        for row in document.get("finding", ()):
            place = f"finding {row.get('id')}"
            wording = Wording(**checked(row, Wording))
            unknown = [name for name in wording.fixes if name not in rows.fixes]
            if unknown:
                raise ValueError(f"fixes: there is no fix {', '.join(unknown)}")
            _add(rows.findings, wording.id, wording)
        for row in document.get("abstention", ()):
            place = f"abstention {row.get('id')}"
            abstention = Abstention(**checked(row, Abstention))
            _add(rows.abstentions, abstention.id, abstention)
    except (TypeError, ValueError, AttributeError) as error:
        raise TableError(f"{path.name}: {place}: {error}") from None


def _add(rows: dict[str, Any], name: Any, row: Any) -> None:
    if not isinstance(name, str) or not name or name in rows:
        raise ValueError(f"id cannot be {name!r}: every row has one of its own")
    rows[name] = row


def fill(text: str, figures: Mapping[str, object]) -> str | None:
    """Return the text with its fields filled in; None where a figure that it names is None.

    Raises :class:`KeyError` for a field without a figure.
    """
    if "{" not in text:
        return text
    if any(figures[name] is None for name in _FIELD.findall(text)):
        return None
    return _FIELD.sub(lambda match: str(figures[match[1]]), text)
