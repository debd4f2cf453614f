"""Read which trainings are checked, and their budgets.

They are in the table ``[tool.gpuscope.check]`` of ``pyproject.toml``, or in ``[check]`` of
``gpuscope.toml`` in the same folder, which comes first. What is wrong in a file is an error that
names the file, the line and the key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .. import toml
from ..checked_rows import checked
from ..errors import UsageError
from ..lab.toggles import FACTORY
from ..model.allocator_settings import DEFAULT, AllocatorSettings
from ..predict import from_switches, gpus
from ..predict.answer import REFERENCE, Card
from ..predict.request import Request
from ..text.units import GIB, bytes_text, parse_size
from ..wire.clean import clean
from .settings_file import OWN_FILE, SHARED_FILE, find, table_of, text_of

SWITCHES = (*from_switches.TOGGLES, *from_switches.MORE)
_EXAMPLE = '[tool.gpuscope.check.training.gpt]  factory = "train:make"  fits = "4090"'
_LESS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")


@dataclass(frozen=True, slots=True)
class Allowed:
    """How much something may grow: by a share of what it was, or by a number of bytes."""

    share: float = 0.0
    bytes: int | None = None
    text: str = ""

    def of(self, before: float) -> float:
        """Return by how much ``before`` may grow."""
        return self.share * before if self.bytes is None else self.bytes


@dataclass(frozen=True, slots=True)
class CheckedTraining:
    """One training that is checked, with its budgets; a budget that is not set is None."""

    name: str
    model: str
    """MODULE:FACTORY, torchvision:NAME, hf:DIR or one of the Lab's models."""
    switches: Mapping[str, Any]
    card: Card | None
    fits: bool
    """Whether it must fit on the card."""
    peak_bytes: int | None
    """The most that the whole card may hold."""
    allocated_bytes: int | None
    """The most that tensors may hold, as ``torch.cuda.max_memory_allocated()`` counts it."""
    regression: Allowed | None
    """How much the tensors' peak may grow over the baseline."""
    step_seconds: float | None
    slower: float | None
    """The share by which a step may take longer than in the baseline of the same machine."""
    lines: Mapping[str, int]
    """The line of each key in the file; "" is the line of the table's head."""

    def request(self, project: str = "") -> Request:
        """Return the request for its prediction.

        ``project`` is the folder whose running lines are recorded.
        """
        request = from_switches.request_of(
            self.model, self.switches, (self.card or REFERENCE).architecture
        )
        return replace(request, project=project)

    def settings(self) -> AllocatorSettings:
        """Return the allocator's settings. The environment has no influence on a check."""
        return replace(DEFAULT, expandable=bool(self.switches.get("expandable_segments")))

    def words(self) -> str:
        """Return the model with its switches in one line."""
        parts = [
            f"{name.replace('_', ' ')} {_value_text(value)}"
            for name, value in self.switches.items()
        ]
        return ", ".join([self.model, *parts])

    def line(self, key: str = "") -> int:
        """Return the line of a key, or of the training where it has no such key."""
        return self.lines.get(key) or self.lines[""]


@dataclass(frozen=True, slots=True)
class Configuration:
    """Everything that the file says, and where it is."""

    file: Path
    trainings: Mapping[str, CheckedTraining]
    scripts: tuple[str, ...] = ()
    """Scripts that are read for mistakes, relative to the file's folder."""
    path: tuple[str, ...] = ()
    """Folders in which modules are looked for first, relative to the file's folder."""

    @property
    def folder(self) -> Path:
        return self.file.parent

    def chosen(self, names: Sequence[str]) -> list[CheckedTraining]:
        """Return the trainings with these names, all without names. Raises :class:`UsageError`."""
        for name in names:
            if name not in self.trainings:
                raise UsageError(
                    f"{clean(self.file.name)} has no training {clean(name, 60)!r}."
                    + suggestion(name, self.trainings)
                )
        return [self.trainings[name] for name in names or self.trainings]


@dataclass(frozen=True, slots=True)
class _Row:
    """The keys of one training in the file, except its switches."""

    factory: str
    card: str = ""
    fits: str = ""
    peak: str = ""
    allocated: str = ""
    regression: str = ""
    step_time: str = ""
    slower: str = ""


@dataclass(frozen=True, slots=True)
class _Table:
    """The keys of the whole table."""

    training: Mapping[str, Any]
    scripts: tuple[str, ...] = ()
    path: tuple[str, ...] = ()


def read(folder: Path, named: Path | None = None) -> Configuration:
    """Return the configuration of a folder, or of the ``named`` file.

    Raises :class:`UsageError`.
    """
    file = named or find(folder)
    if file is None:
        raise UsageError(
            "There is no training to check.",
            f"Neither {OWN_FILE} nor a table [tool.gpuscope.check] in {SHARED_FILE} is in this "
            "folder or above it.",
            f"add to {SHARED_FILE}: {_EXAMPLE}",
        )
    return parsed(file, text_of(file))


def parsed(file: Path, text: str) -> Configuration:
    try:
        whole: Any = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise UsageError(f"{file.name} is not TOML: {error}") from None
    head = table_of(file.name)
    for key in head.split("."):
        whole = whole.get(key) if isinstance(whole, dict) else None
    lines = _lines(text)
    if not isinstance(whole, dict):
        raise UsageError(f"{file.name} has no table [{head}].", next=f"add: {_EXAMPLE}")
    _known(file, lines, head, whole, [one.name for one in fields(_Table)])
    try:
        table = checked(whole, _Table)
    except ValueError as error:
        raise _wrong(file, lines, head, "", str(error)) from None
    rows = table.get("training", {})
    if not rows:
        raise _wrong(file, lines, head, "", f"it names no training. Example: {_EXAMPLE}")
    made = {name: _training(file, lines, head, name, row) for name, row in rows.items()}
    return Configuration(file, made, table.get("scripts", ()), table.get("path", ()))


def _training(
    file: Path, lines: Mapping[str, int], head: str, name: str, row: Any
) -> CheckedTraining:
    where = f"{head}.training.{name}"

    def wrong(key: str, why: str) -> UsageError:
        return _wrong(file, lines, where, key, why)

    if not isinstance(row, dict):
        raise wrong("", f"{row!r} is no table")
    _known(file, lines, where, row, [*(one.name for one in fields(_Row)), *SWITCHES])
    switches = {key: value for key, value in row.items() if key in SWITCHES}
    rest = {key: value for key, value in row.items() if key not in SWITCHES}
    try:
        values = checked(rest, _Row)
    except ValueError as error:
        raise wrong(
            next((key for key in rest if str(error).startswith(key)), ""), str(error)
        ) from (None)
    if "factory" not in values:
        raise wrong("", 'factory is missing, such as factory = "train:make"')
    model = values["factory"]
    if (
        ":" in model
        and not model.startswith(("hf:", "torchvision:"))
        and not FACTORY.fullmatch(model)
    ):
        raise wrong("factory", f"{model!r} is no MODULE:FACTORY")
    made = CheckedTraining(
        name,
        model,
        switches,
        _card(values, wrong),
        "fits" in values,
        _size(values, "peak", wrong),
        _size(values, "allocated", wrong),
        _allowed(values, wrong),
        _seconds(values, wrong),
        _share(values, "slower", wrong),
        {
            "": lines.get(where, lines.get(head, 1)),
            **{key: lines[f"{where}.{key}"] for key in row if f"{where}.{key}" in lines},
        },
    )
    try:
        made.request()
    except UsageError as error:
        option = error.what.lstrip("-")
        key = next((one for one in switches if option.startswith(one.replace("_", "-"))), "")
        raise wrong(key, option) from None
    return made


# ── single values ─────────────────────────────────────────────────────────────────────────────────


def _card(values: Mapping[str, str], wrong: Any) -> Card | None:
    """Return the card of ``fits``, else that of ``card``.

    Either may be a size instead of a name.
    """
    key = "fits" if "fits" in values else "card"
    word = values.get(key)
    if word is None:
        return None
    if "fits" in values and "card" in values:
        raise wrong("card", "fits names the GPU already")
    known = gpus.find_gpu(word)
    if known is not None:
        return Card(known.key, known.key, known.total_bytes, known.architecture)
    try:
        size = parse_size(word)
    except ValueError:
        size = 0
    if size < GIB / 4:
        raise wrong(key, f"{word!r} is no known GPU and no size. Known: {gpus.keys()}; or 24 GiB")
    return replace(REFERENCE, name=f"a GPU of {bytes_text(size)}", total_bytes=size)


def _size(values: Mapping[str, str], key: str, wrong: Any) -> int | None:
    if key not in values:
        return None
    try:
        return parse_size(values[key])
    except ValueError:
        raise wrong(key, f"{values[key]!r} is no size, such as 21 GiB") from None


def _share(values: Mapping[str, str], key: str, wrong: Any) -> float | None:
    if key not in values:
        return None
    found = _LESS.fullmatch(values[key])
    if found is None:
        raise wrong(key, f"{values[key]!r} is no percentage, such as 2 %")
    return float(found[1]) / 100


def _allowed(values: Mapping[str, str], wrong: Any) -> Allowed | None:
    text = values.get("regression")
    if text is None:
        return None
    if _LESS.fullmatch(text):
        return Allowed(share=_share(values, "regression", wrong) or 0.0, text=text.strip())
    try:
        return Allowed(bytes=parse_size(text), text=text.strip())
    except ValueError:
        raise wrong("regression", f"{text!r} is no percentage and no size: 2 % or 50 MiB") from None


def _seconds(values: Mapping[str, str], wrong: Any) -> float | None:
    text = values.get("step_time")
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s)\s*", text)
    if found is None or not float(found[1]):
        raise wrong("step_time", f"{text!r} is no time, such as 250 ms or 1.5 s")
    return float(found[1]) * (1e-3 if found[2] == "ms" else 1.0)


def _value_text(value: Any) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else clean(str(value), 60)


# ── the file ──────────────────────────────────────────────────────────────────────────────────────


def _lines(text: str) -> dict[str, int]:
    """Return the line of each table and key that has a line of its own, by its full name."""
    found: dict[str, int] = {}
    head = ""
    for number, line in enumerate(text.splitlines(), 1):
        table = re.match(r"\s*\[\s*([^\[\]]+?)\s*\]", line)
        key = re.match(r"""\s*([\w.-]+|"[^"]*"|'[^']*')\s*=""", line)
        if table:
            head = re.sub(r"""\s*["']?([^"'.]+|(?<=["'])[^"']*)["']?\s*(\.|$)""", r"\1\2", table[1])
            found.setdefault(head, number)
        elif key:
            name = key[1].strip("\"'")
            found.setdefault(f"{head}.{name}" if head else name, number)
    return found


def _known(
    file: Path, lines: Mapping[str, int], where: str, row: Mapping[str, Any], names: Sequence[str]
) -> None:
    for key in row:
        if key not in names:
            raise _wrong(file, lines, where, key, f"there is no such key.{suggestion(key, names)}")


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return the nearest of the names in a sentence, or all of them if no name is near."""
    known = list(names)
    near = get_close_matches(word, known, 1, 0.6)
    return f" Did you mean {near[0]}?" if near else f" There are: {', '.join(known)}."


def _wrong(file: Path, lines: Mapping[str, int], where: str, key: str, why: str) -> UsageError:
    full = f"{where}.{key}" if key else where
    line = lines.get(full, lines.get(where, 1))
    return UsageError(clean(f"{file.name}:{line}: [{where}]{' ' + key if key else ''}: {why}", 600))
