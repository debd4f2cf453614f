"""``gpuscope export``: Prometheus metrics of this machine, on a port or in a file."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...exit_status import ExitStatus
from ...text.units import window_text
from ...wire.clean import clean
from ..args import flag, option, sample_rate, seconds_between, whole_between

if TYPE_CHECKING:
    from ...export.run import Exporter
    from ...store.source import AgentSource

LISTEN = "127.0.0.1:9400"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Serve this machine's state as Prometheus metrics: GPUs, torch's allocator, steps, stalls, "
        "out-of-memory errors. By default only to this machine. It needs one more library: pip "
        "install prometheus-client. For a cluster see demos/fleet."
    )
    option(parser, "--listen HOST:PORT", f"where to serve (default {LISTEN})")
    flag(parser, "--allow-remote", "allow a --listen address that other machines can reach")
    option(
        parser,
        "--textfile FILE.prom",
        "write a file for node_exporter instead of listening on a port",
        Path,
    )
    option(
        parser,
        "--interval SECONDS",
        "seconds between writes of the file (default 15)",
        seconds_between(1, 3600),
        default=15.0,
    )
    flag(parser, "--once", "write one reading to --textfile or standard output, then exit")
    option(
        parser,
        "--max-trainers N",
        "export at most this many trainers (default 256)",
        whole_between(1, 4096),
        default=256,
    )
    option(
        parser, "--hz RATE", "readings a second, 0.1 to 10 (default 1)", sample_rate, default=1.0
    )


def run(args: argparse.Namespace) -> int:
    try:
        from ...export import run as export
        from ...export.page import SeriesLimits
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        print(
            "gpuscope export: prometheus_client is not installed here. Next:  pip install "
            "prometheus-client",
            file=sys.stderr,
        )
        return ExitStatus.UNCHECKED
    try:
        if args.textfile is not None and args.textfile.suffix != ".prom":
            other = shlex.quote(str(args.textfile.with_suffix(".prom")))
            raise export.CannotExport(
                f"node_exporter reads *.prom only. Next:  gpuscope export --textfile {other}"
            )
        if args.textfile is not None and args.listen and not args.once:
            raise export.CannotExport("--textfile and --listen cannot be combined: start two")
        if args.textfile is not None and not args.textfile.parent.is_dir():
            raise export.CannotExport(
                f"no such directory: {args.textfile.parent}. Next:  mkdir {args.textfile.parent}"
            )
        at = export.address(args.listen or LISTEN, args.allow_remote)
        exporter = export.Exporter(_source(args.hz), SeriesLimits(trainers=args.max_trainers))
        return asyncio.run(_run(args, exporter, at))
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        print(
            f"gpuscope export: cannot write{clean(where)}: {error.strerror or error}",
            file=sys.stderr,
        )
    return ExitStatus.UNCHECKED


async def _run(args: argparse.Namespace, exporter: Exporter, at: tuple[str, int]) -> int:
    from ...export import run as export

    if args.once:
        page = await export.once(exporter)
        if args.textfile is None:
            sys.stdout.write(page.decode())
        else:
            export.put(args.textfile, page)
    elif args.textfile is not None:
        print(
            f"gpuscope: writes {clean(str(args.textfile))} every {window_text(args.interval)}",
            file=sys.stderr,
            flush=True,
        )
        await export.write(exporter, args.textfile, args.interval)
    else:
        shown = f"[{at[0]}]:{at[1]}" if ":" in at[0] else f"{at[0]}:{at[1]}"
        print(f"gpuscope: metrics at http://{shown}/metrics", file=sys.stderr, flush=True)
        await export.serve(exporter, *at)
    return ExitStatus.OK


def _source(hz: float) -> AgentSource:
    """The agent on this machine. Names of others' jobs are cut by it as everywhere."""
    from ...attach.bundle import local_agent_argv
    from ...store.source import AgentSource
    from ...store.view import LOCAL

    return AgentSource(local_agent_argv(hz), LOCAL, socket.gethostname())
