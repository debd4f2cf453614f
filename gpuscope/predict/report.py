"""Write an answer as lines of text.

The functions are pure and return (text, token) pieces, for the verb and for the screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..lab.toggles import BY_NAME, fsdp_given
from ..snapshot.drawing import BLOCKS, Charset, bar
from ..text import width as width_of
from ..text.styled import Line, hang, wrap
from ..text.units import GIB, MIB, amount_text, bytes_text, count_text, error_text, percent_text
from .answer import REFERENCE, Answer, Card, Tried
from .context_memory import ContextMemory
from .deepspeed import Zero
from .errors import Estimate
from .largest import Largest
from .measured_kernels import measured
from .request import Doubt, Request
from .verdict import FitVerdict
from .whatif import LeftOut

BAR_CELLS = 12
LEAST_HELP = 0.005
"""A fix that frees a smaller share of what the whole GPU needs is no help."""
MOST_MODULES = 8
TOKENS = {"fits": "accent", "too_close": "warn", "does_not_fit": "bad"}
WORDS = {"fits": "fits", "too_close": "too close", "does_not_fit": "does not fit"}
_VERBS = {**WORDS, "too_close": "is too close to call"}
_TITLES = {"fits": "Fits", "too_close": "Too close to call", "does_not_fit": "Does not fit"}
SOURCES = {
    "measured": "measured here",
    "shipped": "measured on this kind of GPU",
    "calculated": "an estimate",
}
NAMES = {
    "parameter": "parameters",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "activation": "activations",
    "temporary": "temporary",
    "cache": "keys and values",
    "input": "input",
    "workspace": "library workspaces",
    "unknown": "unknown",
}
_OF_OPERATORS = ("activation", "temporary", "unknown")
MOST_WAYS = 3
"""The ways to fit that are named beside the verdict; the table has all."""
PHASES = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer step"}


def lines(answer: Answer, width: int, glyphs: Charset = BLOCKS) -> list[Line]:
    """Return the whole answer, ``width`` cells wide."""
    told = [*headline(answer), *ways_to_fit(answer), *largest_lines(answer)]
    out = [part for line in told for part in wrap(line, width, 2)]
    out += [*wrap([(subject(answer), "muted")], width, 2), []]
    out += _peaks(answer, width)
    out += [[], *_owners(answer, width, glyphs)]
    out += [[], *(part for line in where(answer) for part in wrap(line, width, 2))]
    if answer.what_if is not None:
        out += [[], *fix_lines(answer, answer.what_if, width), *left_lines(answer.left_out, width)]
    return [*out, *([[]] if answer.doubts else [])] + [
        line
        for doubt in answer.doubts
        for line in _hung("+ " if doubt.upward else "± ", doubt_text(doubt), width)
    ]


def brief(answer: Answer, width: int, glyphs: Charset = BLOCKS) -> list[Line]:
    """Return the verdict, what was predicted, the three peaks and the parts of the first."""
    out = [part for line in headline(answer) for part in wrap(line, width, 2)]
    out += wrap([(subject(answer), "muted")], width, 2)
    return [*out, [], *_peaks(answer, width), [], *_categories(answer, glyphs)]


def headline(answer: Answer) -> list[Line]:
    """Return the verdict and its number."""
    figure = answer.prediction.device
    need = with_error(figure)
    room, judged = answer.room, answer.verdict
    if room is None or judged is None:
        line: Line = [(f"Needs {need} of GPU memory.", "title")]
        return [
            line,
            [("To see whether that fits: --gpu h200, --gpu 4090 … or --capacity 24GiB", "muted")],
        ]
    token = TOKENS[judged.outcome]
    sentence = f" on {room.card.name}: {need_text(answer)}"
    out: list[Line] = [[(_TITLES[judged.outcome], token), (sentence, "title")]]
    if judged.without_scratch:
        text = (
            "It fits if its convolutions use less cuDNN scratch memory: torch then picks "
            "other algorithms, which may be slower."
        )
        out.append([(text, token)])
    elif judged.outcome == "fits" and 0 <= judged.spare_bytes < figure.error_bytes:
        text = "Should it need more, torch returns cached memory, and its tensors still fit."
        out.append([(text, "muted")])
    now = answer.verdict_now
    if now is not None and now.outcome != judged.outcome:
        held = f"{bytes_text(room.card.in_use_bytes or 0)} of it are in use by other processes now"
        out.append([(f"{held}: in what is free it {_VERBS[now.outcome]}", TOKENS[now.outcome])])
    return out


def ways_to_fit(answer: Answer) -> list[Line]:
    """Return in one line what makes a training fit that does not, where that was tried."""
    if answer.what_if is None or answer.verdict is None or answer.verdict.outcome == "fits":
        return []
    fitting = [
        one.fix.title
        for one in answer.what_if
        if one.verdict is not None and one.verdict.outcome == "fits"
    ]
    if not fitting:
        return [[("None of the fixes below is enough by itself.", "text")]]
    any_of = " any of" if len(fitting) > 1 else ""
    return [[(f"It fits with{any_of}: ", "text"), ("; ".join(fitting[:MOST_WAYS]), "title")]]


def need_text(answer: Answer) -> str:
    """Return what is needed beside what the card has, and what then remains or is missing.

    The error is in bytes too: "± 3.1 % of 24 GiB" would read as a share of the card.
    """
    figure, room, judged = answer.prediction.device, answer.room, answer.verdict
    need = with_error(figure)
    if not figure.lopsided:
        error = f"{bytes_text(figure.error_bytes)} ({error_text(figure.error_percent)})"
        need = f"{bytes_text(figure.bytes)} ± {error}"
    if room is None or judged is None:
        return need
    share = answer.settings.fraction
    allowed = (
        f" and torch is allowed {percent_text(share)} of it"
        if share is not None and judged.limit_bytes < room.limit_bytes
        else ""
    )
    return f"{need}, the GPU has {bytes_text(room.card.total_bytes)}{allowed}{spare(judged)}"


def spare(judged: FitVerdict) -> str:
    """Return in words how much memory remains, or is missing."""
    size, enough = bytes_text(abs(judged.spare_bytes)), judged.spare_bytes >= 0
    if judged.outcome == "too_close":
        return f", {size} {'below' if enough else 'above'} the limit"
    if judged.outcome == "fits":
        return f", {size} to spare" if enough else f", with {size} of cache released on the way"
    return f", {size} left" if enough else f", {size} short"


def subject(answer: Answer) -> str:
    """Return in one line what was predicted."""
    request = answer.request
    parts = [request.model, f"batch {answer.batch}", *request_words(request)]
    parts += [one for one in answer.setup if one.lower() not in map(str.lower, parts)]
    parts += [
        f"{parameters_text(answer.parameters)} parameters"
        if answer.parameters >= 1e5
        else f"{answer.parameters:,} parameters",
        f"traced with torch {answer.torch}",
        f"kernels measured with torch {measured().torch}",
    ]
    conf = answer.settings.text()
    return ", ".join(parts + ([conf] if conf else []))


def parameters_text(count: int) -> str:
    """Return how many parameters a model has, as people call it: ``124.1 M``, ``8.07 B``."""
    return f"{count / 1e9:,.2f} B" if count >= 1e9 else f"{count / 1e6:,.1f} M"


def request_words(request: Request) -> list[str]:
    """Return the parts of the request that differ from the default."""
    parts = [f"amp {request.amp}"] if request.amp != "off" else []
    parts += [f"{request.accumulate} micro-batches"] if request.accumulate > 1 else []
    if request.checkpoint:
        parts.append(
            "checkpoint" if request.checkpoint == 1 else f"checkpoint but 1 in {request.checkpoint}"
        )
    parts += [f"lora {request.lora}"] if request.lora else []
    parts += [f"weights in {request.quantize}"] if request.quantize else []
    parts += [request.optimizer] if request.optimizer else []
    parts += [f"compile {compile_mode(request)}"] if request.compile else []
    parts += ["channels last"] if request.channels_last else []
    parts += ["cuDNN benchmark"] if request.cudnn_benchmark else []
    parts += ["TF32"] if request.tf32 else []
    parts += ["fused"] if request.fused else ["foreach"] if request.foreach else []
    parts += ["no foreach"] if request.foreach is False else []
    parts += [f"{request.sequence} tokens"] if request.sequence else []
    parts += [f"generating with a {request.serve} cache"] if request.serve else []
    parts += [f"{request.resolution} pixels"] if request.resolution else []
    parts += (
        [f"{request.sharding} over {count_text(request.ranks, 'rank')}", *_fsdp(request)]
        if request.sharding != "none"
        else []
    )
    if request.deepspeed:
        zero = Zero.of(request.deepspeed)
        parts += [
            zero.kind,
            f"DeepSpeed stage {zero.stage} over {count_text(request.ranks, 'rank')}",
        ]
    return parts


def compile_mode(request: Request) -> str:
    """Return the mode of torch.compile by what it does."""
    if request.max_autotune:
        return "max-autotune" if request.cuda_graphs else "max-autotune-no-cudagraphs"
    return "reduce-overhead" if request.cuda_graphs else "default"


def _fsdp(request: Request) -> list[str]:
    """Return FSDP's switches as words: "reshard never"."""
    return [
        f"{name.removeprefix('fsdp_')} {BY_NAME[name].text(getattr(request, name))}"
        for name in fsdp_given(request)
    ]


def table_unit(answer: Answer) -> tuple[str, int]:
    """Return the unit of the tables: of a small model GiB would leave one digit."""
    return _unit(answer.prediction.allocated.bytes)


def _unit(largest: int) -> tuple[str, int]:
    return ("GiB", GIB) if largest >= GIB else ("MiB", MIB)


def _peaks(answer: Answer, width: int) -> list[Line]:
    found, outside = answer.prediction, answer.outside
    card = answer.room.card if answer.room else REFERENCE
    rows = [
        ("allocated", found.allocated, "by tensors, as torch.cuda.max_memory_allocated()"),
        ("reserved", found.reserved, "by torch's allocator, as torch.cuda.max_memory_reserved()"),
        ("whole GPU", found.device, outside_words(outside, card)),
    ]
    name_of_unit, unit = table_unit(answer)
    cells = [
        sides(figure, unit) if figure.lopsided else error_text(figure.error_percent)
        for _, figure, _ in rows
    ]
    room = max(6, *map(len, cells))
    error = "+ / −" if room > 8 else "±"
    out: list[Line] = [[(f"peak           {name_of_unit}  {error:>{room}}", "muted")]]
    for (name, figure, note), error in zip(rows, cells, strict=True):
        line = f"{name:11} {amount_text(figure.bytes, unit):>6}  {error:>{room}}   "
        for number, part in enumerate(
            width_of.wrap(note, width - len(line)) if width >= 80 else [""]
        ):
            out.append([(line if number == 0 else " " * len(line), "text"), (part, "faint")])
    return out


def outside_words(found: ContextMemory, card: Card) -> str:
    """Return what lies outside of torch, and how that is known."""
    context, driver = bytes_text(found.context_bytes), bytes_text(found.driver_bytes)
    parts = f"{context} of CUDA context and {driver} of driver"
    return f"with {parts}, {'as on an H200: --gpu NAME' if card.assumed else SOURCES[found.source]}"


def _owners(answer: Answer, width: int, glyphs: Charset) -> list[Line]:
    return [*_categories(answer, glyphs), [], *by_module(answer, width)]


def _categories(answer: Answer, glyphs: Charset) -> list[Line]:
    whole, unit = max(1, answer.prediction.allocated.bytes), table_unit(answer)[1]
    out: list[Line] = [[("at the peak", "muted")]]
    for name, size in answer.prediction.categories.items():
        share = size / whole
        out.append(
            [
                (f"{NAMES.get(name, name):19}", "text"),
                (f"{amount_text(size, unit):>6} {percent_text(share, whole=True):>5} ", "text"),
                (bar(share, BAR_CELLS, glyphs).rstrip(), "allocated"),
            ]
        )
    return out


def by_module(answer: Answer, width: int) -> list[Line]:
    """Return the modules that own most of what is live at the peak, ``width`` cells wide."""
    whole, unit = max(1, answer.prediction.allocated.bytes), table_unit(answer)[1]
    named = parts_of(answer.modules, answer.outside_modules)
    room = max(20, width - 22)
    out: list[Line] = [[("by module", "muted")]]
    for name, size in named[:MOST_MODULES]:
        text = width_of.cut_start(name, room)
        out.append([_share(size, whole, unit), (text, "text")])
    rest = sum(size for _, size in named[MOST_MODULES:])
    if rest:
        others = count_text(len(named) - MOST_MODULES, "other")
        out.append([_share(rest, whole, unit), (others, "muted")])
    return out


def _share(size: int, whole: int, unit: int) -> tuple[str, str]:
    share = percent_text(size / whole, whole=True)
    return f"{amount_text(size, unit):>6} {share:>5}  ", "text"


def parts_of(
    modules: Mapping[str, int], outside: Mapping[tuple[str, str], int]
) -> list[tuple[str, int]]:
    """Return the modules as ``alike`` does, and by name what no module owns, largest first.

    ``outside`` has the bytes that no module owns, by category and operator. The loss and the
    training loop compute there: the operator names them. Of the rest the category says it all.
    """
    sums = dict(alike(modules))
    left = sums.pop("", 0)
    for (category, operation), size in outside.items():
        named = category in _OF_OPERATORS and operation
        name = f"{operation}, outside modules" if named else NAMES.get(category, category)
        sums[name] = sums.get(name, 0) + size
        left -= size
    if left > 0:
        sums["outside modules"] = left
    return sorted(sums.items(), key=lambda item: -item[1])


def alike(modules: Mapping[str, int]) -> list[tuple[str, int]]:
    """Join modules whose names differ in numbers only, and sort them, largest first.

    ``blocks.0.mlp`` and its like become ``blocks.*.mlp``.
    """
    sums: dict[str, int] = {}
    for name, size in modules.items():
        key = joined(name)
        sums[key] = sums.get(key, 0) + size
    return sorted(sums.items(), key=lambda item: -item[1])


def joined(module: str) -> str:
    """Return a module's name with ``*`` for each number."""
    parts = module.split(".")
    if all(part.isdigit() for part in parts):
        return module  # the layers of a Sequential have no other names
    return ".".join("*" if part.isdigit() else part for part in parts)


def where(answer: Answer) -> list[Line]:
    """Return where in the step the peak is."""
    at = answer.peak_at
    phase = PHASES.get(at.phase, at.phase)
    if answer.request.serve:
        phase = "the prompt" if at.step == "step 1" else "the next token"
        at = replace(at, step="")
    parts = [part for part in (at.step, phase) if part]
    text = ", ".join(parts) or "before the first step"
    text += f": {answer.operation}" if answer.operation else ""
    text += f" in {answer.module}" if answer.module else ""
    return [[("reached in ", "muted"), (text, "text")]]


def largest_lines(answer: Answer) -> list[Line]:
    """Return the lines about the largest batch and the longest context, as far as asked for."""
    asked = {"largest_batch": answer.largest, "largest_context": answer.largest_context}
    return [
        _largest_line(name, found, answer.why_not.get(name, ("", ""))[1])
        for name, found in asked.items()
        if found is not None or answer.why_not.get(name, ("not_asked",))[0] != "not_asked"
    ]


def _largest_line(name: str, found: Largest | None, why: str) -> Line:
    title = f"{name.replace('_', ' ').capitalize()}: "
    if found is None:
        return [(title, "muted"), ("unknown, ", "text"), (why, "text")]
    if found.batch == 0:
        least = "sample" if name == "largest_batch" else "short prompt"
        return [(title, "muted"), (f"not even one {least} fits", "bad")]
    span = f" ({found.low} to {found.high} with the error)" if found.low != found.high else ""
    how = "traced and replayed" if found.traced else "extrapolated from smaller ones"
    more = " or more" if found.most else ""
    if found.most and name == "largest_context":
        more = ", all that the model has positions for"
    return [(title, "muted"), (f"{found.batch}{more}", "title"), (f"{span}, {how}", "text")]


def fix_lines(answer: Answer, tried: Sequence[Tried], width: int) -> list[Line]:
    """Return the table of fixes, the one that frees most first; then what was tried in vain."""
    if not tried:
        return [[("What would help: none of the fixes tried here frees memory", "muted")]]
    wide = width >= 100
    helping = [one for one in tried if _helps(answer, one)]
    vain = ", ".join(
        f"{one.fix.title} (needs {bytes_text(one.prediction.device.bytes)})"
        for one in tried
        if one not in helping
    )
    rest = _hung("no help: ", vain, width) if vain else []
    if not helping:
        return [[("What would help: none of the fixes tried here", "muted")], *rest]
    name, unit = _unit(max(one.freed for one in helping))
    out: list[Line] = [[(line, "faint")] for line in width_of.wrap(_columns(answer), width)]
    out.append([(f"frees {name} needs {name}  ", "muted"), ("what would help", "muted")])
    for one in helping:
        freed = one.freed
        verdict = (
            [(f"  {WORDS[one.verdict.outcome]}", TOKENS[one.verdict.outcome])]
            if one.verdict
            else []
        )
        lead = f"{_signed(freed, unit):>9} {amount_text(one.prediction.device.bytes, unit):>9}  "
        out += wrap([(lead, "text"), (one.fix.title, "title"), *verdict], width, len(lead))
        if freed > 0:
            indent = " " * (21 if width >= 80 else 4)
            text = f"{one.fix.change} · cost: {one.fix.cost}" if wide else one.fix.change
            out += [[(indent + part, "faint")] for part in width_of.wrap(text, width - len(indent))]
            if not wide:
                out += [
                    [(indent + part, "faint")]
                    for part in width_of.wrap("cost: " + one.fix.cost, width - len(indent))
                ]
    return out + rest


def _helps(answer: Answer, one: Tried) -> bool:
    """Return whether a fix lowers what the whole GPU needs, or makes a training fit."""
    needed = answer.prediction.device.bytes
    enough = one.verdict is not None and one.verdict.outcome == "fits"
    if enough and answer.verdict is not None and answer.verdict.outcome != "fits":
        return True
    return needed - one.prediction.device.bytes >= LEAST_HELP * needed


def _columns(answer: Answer) -> str:
    """Say what the two figures of a fix are of: they are of different sums."""
    found = answer.prediction
    return (
        f"frees: of the {bytes_text(found.allocated.bytes)} that tensors take at the peak. "
        f"needs: all GPU memory then, instead of {bytes_text(found.device.bytes)}: also the "
        "allocator's cache and the CUDA context, which do not shrink with the tensors."
    )


def left_lines(left: Sequence[LeftOut], width: int) -> list[Line]:
    """Return what was not tried, and why."""
    return [
        line for one in left for line in _hung("not tried: ", f"{one.title}: {one.reason}", width)
    ]


def doubt_text(doubt: Doubt) -> str:
    """Return a doubt with what it adds to the error."""
    if not doubt.percent:
        return doubt.text
    how = (
        f"up to {doubt.percent:.0f} % more" if doubt.upward else f"adds {error_text(doubt.percent)}"
    )
    if doubt.less_percent is not None:
        how += f", or up to {doubt.less_percent:.0f} % less"
    return f"{doubt.text} ({how})"


def with_error(figure: Estimate) -> str:
    """Return 4.72 GiB ± 2.1 %; with both sides if they differ: 717 MiB (+3.22 GiB / −10.0 MiB)."""
    more, less = bytes_text(figure.error_bytes), bytes_text(figure.less_bytes)
    lopsided = figure.lopsided and more != less
    error = f"(+{more} / −{less})" if lopsided else f"± {error_text(figure.error_percent)}"
    return f"{bytes_text(figure.bytes)} {error}"


def sides(figure: Estimate, unit: int) -> str:
    """Return how much more and how much less it may be, without the unit."""
    return f"+{amount_text(figure.error_bytes, unit)} / −{amount_text(figure.less_bytes, unit)}"


def _signed(size: int, unit: int) -> str:
    """Return what a fix frees, with a minus sign for what it costs; a dash for nothing."""
    if size <= 0 and abs(size) < MIB:
        return "–"
    return amount_text(size, unit).replace("-", "−")


def _hung(lead: str, text: str, width: int) -> list[Line]:
    return hang([(lead, "faint")], [(text, "muted")], width, style="faint", least=20)
