"""Predict the peak memory of a training before it uses a GPU.

``gpuscope predict`` also says what would make the peak smaller.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

from ....errors import UsageError
from ....lab.config import add_toggle
from ....lab.toggles import BY_NAME, FACTORY, PRESETS, help_groups
from ....missing_file import MissingFile, is_missing_file
from ....predict.from_switches import TOGGLES
from ....text.units import MIB
from ... import output
from ...args import flag, option, seconds_between, size_of_at_least, whole_between
from ...progress_line import ProgressLine

if TYPE_CHECKING:
    from ....model.allocator_settings import AllocatorSettings
    from ....predict.answer import Answer, Card, Tracer
    from ....predict.request import CannotPredict, Request
    from ....predict.whatif import MemoryFix
    from ....text.styled import Line

SECONDS = 300.0
MIN_WIDTH, MAX_WIDTH = 60, 160
HIDDEN = ("seed",)
"""Toggles that are accepted but not in the help, because they rarely affect memory.

They are accepted so that the arguments of a lab run can be reused.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from ....predict.adapters import LAYOUTS
    from ....predict.request import SHARDINGS, TASKS
    from ....predict.serving import CONTEXT, NEW_TOKENS

    parser.usage = (
        "gpuscope predict [OPTIONS] FACTORY|FILE|PID\n"
        "       gpuscope predict [OPTIONS] --model NAME | --hf-config PATH"
    )
    parser.description = (
        "Predict the peak memory of a training without a GPU: whether it fits, the largest batch, "
        "and what would help. The model is traced on the CPU, with no memory for its tensors."
    )
    parser.add_argument(
        "target",
        nargs="*",
        metavar="FACTORY|FILE|PID",
        help="your own model as MODULE:FACTORY, a function that returns it; or torchvision NAME; "
        "or a recording or a trainer's PID, to start from the peak that was measured there",
    )
    model = parser.add_argument_group("the model")
    option(model, "--model MODEL", f"a model of the Lab: {BY_NAME['model'].takes}")
    option(
        model,
        "--hf-config PATH",
        "a model of transformers: its config.json, or the folder that contains it",
    )
    option(model, "--task TASK", f"the task to train for: {', '.join(TASKS)}")
    option(
        model, "--sequence N", "tokens in a sample (transformers)", whole_between(1, (1 << 24) - 1)
    )
    option(
        model,
        "--resolution N",
        "pixels on each side of an image (torchvision, transformers)",
        whole_between(1, (1 << 24) - 1),
    )
    option(
        model,
        "--lora r=N,…",
        "with --hf-config: train LoRA adapters of rank r, the other weights frozen: "
        "r=16,dropout=0.05,targets=q_proj+v_proj (default: targets=all, every linear layer)",
    )
    model.add_argument(
        "--quantize",
        choices=LAYOUTS,
        help="with --lora or --serve: quantize the frozen weights, as bitsandbytes does",
    )
    option(
        model,
        "--serve batch=N,…",
        "with --hf-config: predict for generating text instead of training. batch is the "
        "number of sequences at a time, context the tokens in each of them (prompt and answer), "
        "new the tokens that are generated: batch=8,context=4096,new=256 "
        f"(default: batch=1,context={CONTEXT},new={NEW_TOKENS})",
    )
    card = parser.add_argument_group("the GPU it must fit on")
    option(
        card,
        "--gpu NAME|INDEX",
        "the name of a GPU (h200, a100-80, 4090 …), or the index of one in this machine "
        "(default: its first)",
    )
    option(
        card,
        "--capacity SIZE",
        "instead of --gpu: the GPU's total memory, such as 24GiB",
        size_of_at_least(64 * MIB),
    )
    computed = parser.add_argument_group("what to compute")
    computed.add_argument(
        "--what-if",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="also predict how much memory each possible fix would free",
    )
    flag(computed, "--largest-batch", "also find the largest batch that fits")
    flag(
        computed,
        "--largest-context",
        "with --serve: also find the longest context that fits with this batch",
    )
    flag(computed, "--json", "a JSON document instead of text")
    option(
        computed,
        "--timeout SECONDS",
        f"give up after this long (default {SECONDS:g})",
        seconds_between(1, 86400),
        default=SECONDS,
    )
    flag(
        computed,
        "--measure",
        "instead of a prediction: measure how much memory a CUDA context takes on this "
        "machine's GPU, which makes later predictions more exact",
    )
    groups = help_groups(parser)
    for name in TOGGLES:
        toggle = BY_NAME[name]
        default = toggle.text(toggle.default) + (
            " for the Lab's models, torch's own otherwise" if name == "tf32" else ""
        )
        choices = f" ({toggle.takes})" if toggle.choices else ""
        text = (
            argparse.SUPPRESS
            if name in HIDDEN
            else f"{toggle.help}{choices}; default: {default}".replace("%", "%%")
        )
        add_toggle(groups[toggle.group], toggle, text)
    option(
        groups["memory"],
        "--checkpoint-every K",
        "with --checkpoint: keep the activations of every Kth block only",
        whole_between(1, (1 << 24) - 1),
    )
    groups["parallel"].add_argument(
        "--parallel",
        choices=SHARDINGS,
        default="none",
        help="how the ranks of --nproc share the model (default: none)",
    )
    option(
        groups["parallel"],
        "--deepspeed FILE",
        "instead of --parallel: a DeepSpeed config (JSON); the prediction is for one of the "
        "ranks of --nproc",
    )


def run(args: argparse.Namespace, tracer: Tracer | None = None) -> int:
    """Run the verb; tests pass ``tracer``."""
    if args.measure:
        from . import measure as predict_measure

        return predict_measure.run(args)
    words = list(args.target)
    if len(words) == 1 and _is_trainer(words[0]):
        from . import trainer as predict_trainer

        return predict_trainer.run(args, words[0])
    model = model_of(args, words)
    if tracer is not None:
        return _ask(args, model, tracer)
    from ....predict import child

    with child.Tracer() as process:
        ends = time.monotonic() + args.timeout
        _started(process)
        return _ask(
            args, model, lambda request: process.trace(request, max(1.0, ends - time.monotonic()))
        )


def _started(process: Any) -> None:
    """Start the child that loads torch while this process examines the card.

    Errors of the child are reported when it is first asked.
    """
    from ....predict.request import CannotPredict

    try:
        process.start()
    except CannotPredict:
        pass


def _check(args: argparse.Namespace) -> None:
    if args.serve and args.what_if:
        raise UsageError("--what-if is about trainings: --serve cannot be combined with it")
    if args.largest_context and not args.serve:
        raise UsageError("--largest-context is for generating text: add --serve batch=8")


def _ask(args: argparse.Namespace, model: str, tracer: Tracer) -> int:
    from ....predict.answer import TracedRequest
    from ....predict.document import document, exit_code
    from ....predict.request import CannotPredict
    from . import card as predict_card

    _check(args)
    began = time.monotonic()
    card, settings = predict_card.card(args), settings_of(args)
    request = request_of(args, model, card)
    progress = ProgressLine(sys.stderr, not args.json)
    try:
        with progress.counting(f"tracing {request.model}", args.timeout):
            asking = TracedRequest(request, tracer, card, settings, args.timeout)
        _look_ahead(progress, args, asking)
        answer = asking.finish()
    except CannotPredict as trouble:
        progress.clear()
        return _fail(args, request.model, trouble, time.monotonic() - began)
    progress.clear()
    if args.json:
        print(output.dump(document(answer)))
    else:
        _print(answer)
    return exit_code(answer.verdict)


def _look_ahead(progress: ProgressLine, args: argparse.Namespace, asking: Any) -> None:
    """Answer the questions that take more than one trace."""
    if args.largest_batch:
        progress.say("searching for the largest batch")
        asking.find_largest()
    if args.largest_context:
        progress.say("searching for the longest context")
        asking.find_largest_context()
    if args.what_if:

        def hear(fix: MemoryFix) -> None:
            progress.say(f"what if: {fix.title}")

        from . import card as predict_card

        asking.find_fixes(predict_card.ranks(args), hear)


# ── the question ──────────────────────────────────────────────────────────────────────────────────


def _is_trainer(word: str) -> bool:
    """A pid, or a file with or without one behind it."""
    from .trainer import is_recording

    return (word.isascii() and word.isdigit()) or (
        is_recording(word) and not word.endswith((".py", ".json"))
    )


def model_of(args: argparse.Namespace, words: list[str]) -> str:
    """The model as a request names it. Raises :class:`UsageError`."""
    named = [name for name in (words, args.model, args.hf_config) if name]
    if not named:
        raise UsageError(
            "name what to predict: MODULE:FACTORY, --model gpt, --hf-config DIR, torchvision NAME "
            "or a PID",
            next="gpuscope predict --model gpt-small --gpu 4090    shows what an answer looks like",
        )
    if len(named) > 1:
        raise UsageError("one model at a time: MODULE:FACTORY, --model or --hf-config")
    if args.hf_config:
        if not os.path.exists(args.hf_config):
            raise UsageError(f"--hf-config: there is no {args.hf_config}")
        return f"hf:{args.hf_config}"
    if args.model:
        model = str(BY_NAME["model"].parse(args.model))
        return PRESETS[model]["cuda"] if model in PRESETS else model
    word = ":".join(words) if words[0] == "torchvision" else words[0]
    if word.startswith("torchvision:") and len(words) <= 2:
        return word
    if len(words) > 1:
        raise UsageError(f"one target at a time, and there are {len(words)}")
    if word.startswith("hf:"):
        return word
    if is_missing_file(word):
        raise MissingFile(word)
    if FACTORY.fullmatch(word) is None:
        from difflib import get_close_matches

        near = get_close_matches(word[:80], [*PRESETS, *BY_NAME["model"].choices], 1, 0.7)
        raise UsageError(
            f"{word!r} is not a model, a trainer or a recording here.",
            "a model of yours is named MODULE:FACTORY, a trainer by its PID, and a model of the "
            "Lab by --model",
            f"gpuscope predict --model {near[0]}" if near else "",
        )
    return word


def request_of(args: argparse.Namespace, model: str, card: Card | None) -> Request:
    """Raises :class:`UsageError` and :class:`ConfigError`."""
    from ....predict import from_switches
    from ....predict.answer import REFERENCE

    given = {
        name: value
        for name in (*TOGGLES, *from_switches.MORE)
        if (value := getattr(args, name)) is not None
    }
    return from_switches.request_of(model, given, (card or REFERENCE).architecture)


def settings_of(args: argparse.Namespace) -> AllocatorSettings:
    """The allocator's settings as a trainer started from this shell would have them."""
    from dataclasses import replace

    from ....model import allocator_settings as settings

    name = next((name for name in settings.NAMES if os.environ.get(name)), None)
    try:
        found = settings.read(os.environ[name]) if name else settings.DEFAULT
    except settings.BadSettings as error:
        raise UsageError(
            f"{name}={os.environ[name or '']}: torch would reject it: {error.what}"
        ) from None
    return (
        found
        if args.expandable_segments is None
        else replace(found, expandable=args.expandable_segments)
    )


# ── what is said ──────────────────────────────────────────────────────────────────────────────────


def _fail(args: argparse.Namespace, model: str, trouble: CannotPredict, seconds: float) -> NoReturn:
    from ....predict.document import failure

    if args.json:
        print(output.dump(failure(model, trouble, seconds)))
    raise trouble


def _print(answer: Answer) -> None:
    from ....predict.report import lines

    width = output.page_width(MIN_WIDTH, MAX_WIDTH)
    text = lines(answer, width, output.glyphs())
    output.print_lines([*text, *_next_lines(answer, width)])


def _next_lines(answer: Answer, width: int) -> list[Line]:
    """Return what to ask next about what does not fit, unless it was asked already."""
    from ....text.styled import wrap

    asks = {
        "--what-if, which shows which settings fit": answer.what_if is None
        and not answer.request.serve,
        # of one sample that does not fit there is no smaller batch
        "--largest-batch, which searches for the largest batch": answer.largest is None
        and answer.batch > 1,
    }
    left = [text for text, useful in asks.items() if useful]
    if not left or answer.verdict is None or answer.verdict.outcome == "fits":
        return []
    return [
        [],
        *wrap([(f"Next: the same command with {', or with '.join(left)}.", "accent")], width),
    ]
