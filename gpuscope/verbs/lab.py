"""``gpuscope lab``: the demo trainer, in the TUI or headless."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from ..cli import EXIT_OK, EXIT_PROBLEMS, EXIT_UNCHECKED, EXIT_USAGE
from ..lab import metrics
from ..lab.config import ConfigError, LabConfig, add_toggles
from ..lab.launch import LabRun, run_blocking

PROGRESS_SECONDS = 1.0
HINT_STEPS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_toggles(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--headless", action="store_true", help="train without the TUI; progress goes to stderr")
    output.add_argument("--json", action="store_true", help="headless, with one JSON document on stdout at the end")


def run(args: argparse.Namespace) -> int:
    """Exit code 0: all steps done, or stopped where no number of steps was asked for; 2: the training failed or was cut
    short; 3: no Python with torch; 64: a toggle has no such value."""
    try:
        config = LabConfig.from_arguments(args)
    except ConfigError as error:
        print(f"gpuscope lab: {error}\nSee: gpuscope lab --help", file=sys.stderr)
        return EXIT_USAGE
    if not (args.headless or args.json):
        from ..tui.launch import run_app

        headless = config.command(steps=config.steps or HINT_STEPS) + " --headless"
        hint = f"Without a screen: {headless}"
        return int(run_app(start_screen="lab", lab_config=config, lab_autostart=True, without_screen=hint))
    if config.steps is None:
        print("Training until Ctrl-C (--steps N ends it by itself).", file=sys.stderr, flush=True)
    lab = run_blocking(config, Progress().show)
    document = _document(lab)
    if args.json:
        json.dump(document, sys.stdout, indent=2, allow_nan=False)
        print()
    elif lab.summary and not lab.failure:
        print(_in_words(document))
    if lab.failure:
        print(lab.failure, file=sys.stderr)
    return _exit_code(lab, document)


def _document(lab: LabRun) -> dict[str, Any]:
    """The worker's document, or one that says why there is none."""
    if lab.summary:
        return lab.summary
    reason = lab.failure.what if lab.failure else "the run was stopped before it had begun"
    return metrics.document(
        lab.config.to_mapping(), {}, {"": ("not_initialised", reason)}, started=lab.started, error=lab.failure
    )


def _exit_code(lab: LabRun, document: dict[str, Any]) -> int:
    if lab.no_torch:
        return EXIT_UNCHECKED
    if lab.failure or (lab.config.steps is not None and document["steps"] < lab.config.steps):
        return EXIT_PROBLEMS
    return EXIT_OK


class Progress:
    """Prints what the worker says on stderr, a line a second."""

    def __init__(self) -> None:
        self._shown = 0.0

    def show(self, record: metrics.Record) -> None:
        if isinstance(record, metrics.Started):
            micro = record.config["accumulate"]
            shape = f"{record.samples_per_step:,} samples a step" + (f" in {micro} micro-batches" if micro > 1 else "")
            model = f"{record.preset} ({record.parameters / 1e6:,.1f} M parameters)"
            device = f"{record.device} ({record.device_name})"
            lines = [f"{model} on {device}, torch {record.torch_version}, amp {record.config['amp']}, {shape}"]
            lines += [f"Warning: {warning}" for warning in record.warnings]
        elif isinstance(record, metrics.Step) and (time.monotonic() - self._shown >= PROGRESS_SECONDS):
            self._shown = time.monotonic()
            lines = [_step(record)]
        else:
            return
        print(*lines, sep="\n", file=sys.stderr, flush=True)


def _step(record: metrics.Step) -> str:
    loss = "not finite" if record.loss is None else f"{record.loss:.4f}"
    pace = record.samples_per_second or 0.0
    parts = [f"step {record.step:,}", f"loss {loss}", f"{pace:,.0f} samples/s", _milliseconds(record.step_seconds)]
    if record.scale is not None:
        parts.append(f"scale {record.scale:g}")
    if record.skipped:
        parts.append(f"{record.skipped} skipped")
    if record.warming_up:
        parts.append("warming up")
    return "  ".join(parts)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.1f} ms/step"


def _in_words(document: dict[str, Any]) -> str:
    """The document as a few lines for a person; what is unknown with its reason."""
    lines = [f"{document['steps']:,} steps on {document['device']}"]
    if document["loss_first"] is not None and document["loss_last"] is not None:
        lines.append(f"loss          {document['loss_first']:.4f} → {document['loss_last']:.4f}")
    if document["step_seconds"]:
        median, p95 = (document["step_seconds"][key] * 1e3 for key in ("median", "p95"))
        lines.append(f"step          {median:,.1f} ms median, {p95:,.1f} ms p95")
        lines.append(f"throughput    {document['samples_per_second']:,.0f} samples/s")
    if document["warmup_seconds"] is not None:
        lines.append(f"warm-up       {document['warmup_seconds']:.2f} s")
    if document["peak_allocated_bytes"] is not None:
        allocated, reserved = (document[f"peak_{key}_bytes"] / 2**30 for key in ("allocated", "reserved"))
        lines.append(f"peak memory   {allocated:.2f} GiB allocated, {reserved:.2f} GiB reserved")
    lines += [f"{entry['path']}: unknown, {entry['reason']}" for entry in document["unknown"]]
    return "\n".join(lines)
