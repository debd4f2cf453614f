"""Make the chapter of a prediction, from the document of ``gpuscope predict --json``."""

from __future__ import annotations

from ..predict.document import FIGURES
from ..predict.errors import Estimate as Predicted
from ..predict.report import NAMES, PHASES, WORDS, parts_of, with_error
from ..text.numbers import number
from ..text.units import DASH, bytes_text, percent_text, signed_bytes_text
from . import documents as read
from .content import (
    BarRow,
    Chapter,
    Figure,
    Figures,
    Part,
    Section,
    Sentences,
    Table,
    Tone,
    Waterfall,
)
from .documents import Document

MAX_MODULES = 20
TONES: dict[str, Tone] = {"fits": "ok", "too_close": "warn", "does_not_fit": "bad"}
NOTES = {
    "peak_allocated": "by tensors, as torch.cuda.max_memory_allocated()",
    "peak_reserved": "by torch's allocator, as torch.cuda.max_memory_reserved()",
    "device_peak": "the whole GPU, with what lies outside torch",
}
TOKENS = {
    "parameter": "allocated",
    "gradient": "series2",
    "optimizer": "series6",
    "activation": "series4",
    "temporary": "cached",
}


def chapter(document: Document, name: str) -> Chapter:
    torch = read.text(document.get("torch"))
    source = f"traced on a CPU with torch {torch}" if torch else "gpuscope predict"
    kernels = read.text(document.get("kernels_torch"))
    source += f", kernels measured with torch {kernels}" if kernels else ""
    facts = [("Model", read.text(document.get("model"), DASH))]
    for key, label in (("batch", "Batch"), ("parameters", "Parameters")):
        if number(document.get(key)) is not None:
            facts.append((label, read.count(document.get(key))))
    settings = read.text(document.get("allocator_settings"))
    facts += [("Allocator settings", settings)] if settings else []
    error = read.mapping(document.get("error"))
    if error:
        said = [read.text(error.get(key)) for key in ("what", "why", "next")]
        failed = Section("Nothing was predicted", [Sentences([one for one in said if one], "bad")])
        return Chapter(name, "Prediction", [failed], facts)
    sections = [
        Section("Does it fit", _peaks(document, source), _verdict(document)),
        Section("What is in memory at the peak", _owners(document, source), _where(document)),
        Section("What would help", _fixes(document, source)),
        Section("What is uncertain", _doubts(document)),
    ]
    return Chapter(name, "Prediction", [one for one in sections if one.parts], facts)


def figure_of(document: Document, key: str) -> Predicted | None:
    size, low, high = (number(document.get(f"{key}_{end}bytes")) for end in ("", "low_", "high_"))
    if size is None or low is None or high is None or not low <= size <= high:
        return None
    return Predicted(int(size), int(high - size), int(size - low))


def _verdict(document: Document) -> str:
    verdict, room = read.text(document.get("verdict")), read.mapping(document.get("capacity"))
    if verdict not in WORDS or not room:
        return "No GPU was named, so nothing says whether it fits."
    total, spare = (
        number(value) for value in (room.get("total_bytes"), document.get("spare_bytes"))
    )
    text = f"It {WORDS[verdict]}" if verdict != "too_close" else "It is too close to call"
    text += f" on {read.text(room.get('name'), 'the GPU')} with {bytes_text(total)}"
    if spare is not None:
        text += f": {bytes_text(abs(spare))} {'to spare' if spare >= 0 else 'short'}"
    return text + "."


def _peaks(document: Document, source: str) -> list[Part]:
    figures = []
    tone = TONES.get(read.text(document.get("verdict")), "")
    for key in FIGURES:
        found = figure_of(document, key)
        if found is not None:
            last = key == "device_peak"
            label = key.replace("_", " ")
            figures.append(Figure(label, with_error(found), NOTES[key], tone if last else ""))
    largest = number(document.get("largest_batch"))
    if largest is not None:
        low, high = (document.get(f"largest_batch_{end}") for end in ("low", "high"))
        note = f"{read.count(low)} to {read.count(high)} with the error"
        figures.append(Figure("largest batch", read.count(largest), note))
    return [Figures(figures, source=source)] if figures else []


def _where(document: Document) -> str:
    at = read.mapping(document.get("peak_at"))
    phase = read.text(at.get("phase"))
    parts = [part for part in (read.text(at.get("step")), PHASES.get(phase, phase)) if part]
    if not parts:
        return ""
    operation, module = read.text(at.get("operation")), read.text(at.get("module"))
    text = f"The peak is reached in {', '.join(parts)}"
    text += f": {operation}" if operation else ""
    return f"{text} in {module}." if module else f"{text}."


def _owners(document: Document, source: str) -> list[Part]:
    found = figure_of(document, "peak_allocated")
    whole = float(found.bytes) if found is not None and found.bytes else 0.0
    parts: list[Part] = []
    categories = {
        name: size
        for name, value in read.mapping(document.get("categories")).items()
        if (size := number(value)) is not None
    }
    if categories and whole:
        bars = [
            BarRow(NAMES.get(name, name), bytes_text(size), size / whole, TOKENS.get(name, "other"),
                False, percent_text(size / whole))
            for name, size in categories.items()
        ]  # fmt: skip
        total = BarRow("allocated", bytes_text(whole), 1.0, detail="100 %")
        parts.append(Waterfall("By purpose", bars, total, source=source))
    modules = {
        read.text(row.get("module")): int(size)
        for row in read.rows(document.get("modules"))
        if (size := number(row.get("bytes"))) is not None
    }
    outside = {
        (read.text(row.get("category")), read.text(row.get("operation"))): int(size)
        for row in read.rows(document.get("outside_modules"))
        if (size := number(row.get("bytes"))) is not None
    }
    joined = parts_of(modules, outside)
    if joined and whole:
        bars = [
            BarRow(name, bytes_text(size), size / whole, "allocated", False,
                percent_text(size / whole))
            for name, size in joined[:MAX_MODULES]
        ]  # fmt: skip
        rest = sum(size for _, size in joined[MAX_MODULES:])
        if rest:
            count = len(joined) - MAX_MODULES
            bars.append(BarRow(f"{count} others", bytes_text(rest), rest / whole, "other"))
        parts.append(Waterfall("By module", bars, source=source))
    return parts


def _fixes(document: Document, source: str) -> list[Part]:
    rows: list[tuple[str, ...]] = []
    tones: dict[int, Tone] = {}
    for place, one in enumerate(read.rows(document.get("what_if"))):
        verdict = read.text(one.get("verdict"))
        after, freed = figure_of(one, "device_peak"), number(one.get("freed_bytes"))
        rows.append(
            (
                read.text(one.get("title")),
                signed_bytes_text(-freed) if freed is not None else DASH,
                with_error(after) if after is not None else DASH,
                WORDS.get(verdict, DASH),
                read.text(one.get("change")),
                read.text(one.get("cost")),
            )
        )
        if verdict == "does_not_fit":
            tones[place] = "bad"
    left = [
        f"Not tried: {read.text(one.get('title'))}: {read.text(one.get('reason'))}"
        for one in read.rows(document.get("left_out"))
    ]
    if not rows:
        return []
    head = ("Change", "Allocated", "GPU memory then", "Verdict", "How", "Cost")
    return [Table("", head, rows, (1, 2), left, tones, source=source)]


def _doubts(document: Document) -> list[Part]:
    rows = []
    for one in read.rows(document.get("doubts")):
        percent = read.said(one.get("percent"), lambda value: f"{value:.1f} %")
        less = read.said(one.get("less_percent"), lambda value: f", or up to {value:.0f} % less")
        sides = "more" if one.get("upward") else "±" + (less if one.get("less_percent") else "")
        rows.append((read.text(one.get("text")), percent, sides))
    return [Table("", ("Doubt", "Adds", ""), rows, (1,))] if rows else []
