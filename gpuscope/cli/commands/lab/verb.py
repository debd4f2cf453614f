"""``gpuscope lab`` starts the demo trainer, in the TUI or headless."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ....exit_status import ExitStatus
from ....lab import metrics, rules
from ....lab.config import LabConfig, add_toggles
from ....lab.launch import LabRun, run_blocking
from ....lab.run_series import document_of
from ....store.view import HostView
from ...args import add_theme, flag
from ...output import dump
from . import devices as lab_devices
from .text import WorkerProgress, in_words

HINT_STEPS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_toggles(parser)
    add_theme(parser)
    lab_devices.add_share(parser)
    output = parser.add_argument_group("output")
    flag(output, "--headless", "train without the TUI; progress goes to stderr")
    flag(output, "--json", "headless; print one JSON document at the end")
    flag(output, "--predict", "headless: also predict the peak memory on a GPU")
    flag(output, "--no-ledger", "do not save the run in the ledger (gpuscope lab runs)")


def run(args: argparse.Namespace) -> int:
    """Train in the TUI or headless."""
    config = LabConfig.from_arguments(args)
    if not (args.headless or args.json):
        from ....tui.app.launch import run_app

        headless = config.command(steps=config.steps or HINT_STEPS) + " --headless"
        hint = f"Without a screen: {headless}"
        return int(
            run_app(
                start_screen="lab",
                lab_config=config,
                lab_autostart=True,
                without_screen=hint,
                theme=args.theme,
            )
        )
    host = lab_devices.look() if config.device != "cpu" else None
    words = [
        name for name in ("headless", "json", "no-ledger") if getattr(args, name.replace("-", "_"))
    ]
    refused = _refusal(config, host, "".join(f" --{name}" for name in words), args.share_gpus)
    if refused is not None:
        return _refuse(config, refused, args.json)
    return _train(
        args,
        config,
        lab_devices.TensorShare(lab_devices.occupants_of_run(config, host) if host else ()),
    )


def _refusal(
    config: LabConfig, host: HostView | None, options: str, force: bool
) -> metrics.RunFailure | None:
    """Say why a run cannot be started, as far as this can be known without torch.

    The worker checks it again with torch.
    """
    known = lab_devices.facts(config, host)
    refusal = rules.refusal(config, known) if known is not None else None
    if refusal is not None:
        return refusal.failure()
    return (
        lab_devices.refusal(config, host, options=options)
        if host is not None and not force
        else None
    )


def _refuse(config: LabConfig, refused: metrics.RunFailure, as_json: bool) -> int:
    if as_json:
        reasons = {"": ("not_initialised", refused.what)}
        print(dump(metrics.document(config.to_mapping(), {}, reasons, error=refused)))
    print(refused, file=sys.stderr)
    return ExitStatus.PROBLEMS


def _train(args: argparse.Namespace, config: LabConfig, share: lab_devices.TensorShare) -> int:
    if config.steps is None:
        print("Training until Ctrl-C (--steps N ends it by itself).", file=sys.stderr, flush=True)
    progress = WorkerProgress()

    def hear(record: metrics.Record) -> None:
        share.record(record)
        progress.show(record)

    lab = run_blocking(config, hear)
    document = share.finish(document_of(lab))
    if args.predict:
        from . import predicted as lab_predicted

        document = lab_predicted.with_prediction(document, config)
    if args.json:
        print(dump(document))
    elif lab.summary and not lab.failure:
        print(in_words(document))
        if args.predict:
            print(lab_predicted.in_words(document))
    if lab.failure:
        print(lab.failure, file=sys.stderr)
    if document["steps"] and not args.no_ledger:
        _write_down(document)
    return _exit_code(lab, document)


def _write_down(document: dict[str, Any]) -> None:
    """Write the run into the ledger.

    An error is reported, and the output of the run is still printed.
    """
    from ....lab.ledger import LedgerError, RunLedger

    sys.stdout.flush()
    try:
        entry = RunLedger().add(document, source="lab")
    except (LedgerError, OSError) as error:
        print(f"Warning: the run is not in the ledger. {error}", file=sys.stderr)
    else:
        print(f"Saved as run {entry.id}: gpuscope lab runs", file=sys.stderr)


def _exit_code(lab: LabRun, document: dict[str, Any]) -> int:
    if lab.no_torch:
        return ExitStatus.UNCHECKED
    if lab.failure or (lab.config.steps is not None and document["steps"] < lab.config.steps):
        return ExitStatus.PROBLEMS
    return ExitStatus.OK
