"""Run ranks on one machine under torchrun's elastic agent, and report how they ended as one result.

``main`` runs in the process that the viewer started. The agent starts a process for each rank,
which becomes a worker (``rank.py``). Rank 0's records are passed on unchanged. When a rank dies,
the run ends with a record that names it. Only ``main`` imports torch, when it runs.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from typing import Any, BinaryIO

from ..process.child import how_it_ended
from . import machine, metrics, rules
from .config import LabConfig
from .device_selection import cores
from .launch import FOLDER_VARIABLE
from .ledger_keeper import Keeper
from .rank_output import Relay

GRACE_SECONDS = 5
"""How long a rank that must end may take for its micro-batch and its summary.

After that it ends without them.
"""
AGENT_SECONDS = GRACE_SECONDS + 3
"""How long the agent waits for its ranks after it has asked them to end; then it kills them."""
MONITOR_SECONDS = 0.1
_PEER = re.compile(
    r"connection (closed|reset|refused)|peer|socket timeout|broken pipe|remote process|nccl ?"
    r"(remote|communicator)|heartbeat|timed? ?out|barrier|store",
    re.IGNORECASE,
)
"""Error messages of a rank that fails only because another one has ended."""


def main(config: LabConfig, stream: BinaryIO, stop_on_eof: bool, keeper: Keeper) -> int:
    """Train ``config`` in its ranks and return the exit code, 0 or 2.

    Records go to ``stream``. On SIGTERM, SIGINT, and with ``stop_on_eof`` at the end of stdin,
    all ranks end at the same step.
    """
    known = facts(config)
    refusal = rules.refusal(config, known)
    if refusal is not None:
        stream.write(metrics.encode(refusal.failure()))
        stream.flush()
        return 2
    processes = rules.processes(config, known)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores() // processes)))
    folder = tempfile.mkdtemp(prefix="ranks-", dir=os.environ.get(FOLDER_VARIABLE) or None)
    relay = Relay(folder, processes, stream)
    try:
        if stop_on_eof:
            threading.Thread(target=_end_with_parent, name="lab-parent", daemon=True).start()
        failures = _run_agent(config, folder, processes)
        relay.finish()
        return _conclude(config, relay, failures, processes, keeper)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def facts(config: LabConfig) -> rules.RunFacts:
    """Return what is known before the ranks start.

    Each rank checks again with what only a CUDA context shows, because this process makes none.
    """
    import torch

    cuda = config.device != "cpu" and torch.cuda.is_available()
    return rules.RunFacts(
        device_type="cuda" if cuda else "cpu",
        gpus=torch.cuda.device_count() if cuda else 0,
        torch_version=str(torch.__version__),
        cores=cores(),
        free_bytes=None if cuda else machine.available_bytes(),
    )


def _end_with_parent() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(AGENT_SECONDS + 1)
    os._exit(0)  # the kernel kills the ranks together with this process


def _run_agent(config: LabConfig, folder: str, processes: int) -> dict[int, Any]:
    """Run the ranks until all have ended, and return the agent's failures by rank.

    There are none if all ended well or were asked to end.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.ERROR)
    known = {field.name for field in dataclasses.fields(LaunchConfig)}
    newer: dict[str, Any] = {"shutdown_timeout": AGENT_SECONDS}
    if "logs_specs" in known:
        from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

        newer["logs_specs"] = DefaultLogsSpecs(log_dir=folder)
    else:
        newer["log_dir"] = folder  # torch before 2.3
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=f"gpuscope-lab-{os.getpid()}",
        role="lab",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=MONITOR_SECONDS,
        **{name: value for name, value in newer.items() if name in known},
    )
    words = ["-m", "gpuscope.lab.rank", folder, str(os.getpid()), config.to_json()]
    try:
        elastic_launch(launch, sys.executable)(*words)
    except ChildFailedError as error:
        return dict(error.failures)
    except SignalException:
        pass
    finally:
        # its signal handlers raise, and only the final record remains to be written
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    return {}


# ── how it ended ──────────────────────────────────────────────────────────────────────────────────


def _conclude(
    config: LabConfig, relay: Relay, failures: dict[int, Any], processes: int, keeper: Keeper
) -> int:
    """Write the last record, and return the exit code."""
    ended = metrics.decode(relay.ended) if relay.ended is not None else None
    if isinstance(ended, metrics.RunEnded) and keeper.keep(ended.summary):
        return 0
    if relay.ended is not None:
        # nothing that a rank does after its summary changes that summary
        relay.write(relay.ended)
        return 0
    if not failures:
        failure = relay.failures.get(0) or next(iter(relay.failures.values()), None)
        if failure is not None:
            relay.write(metrics.encode(failure))
        return 2 if failure else 0
    relay.write(metrics.encode(explain(config, relay, failures, processes)))
    return 2


def explain(
    config: LabConfig, relay: Relay, failures: dict[int, Any], processes: int
) -> metrics.RunFailure:
    """Return the failure of the run.

    It is that of the rank which died first, or the one that all ranks report alike.
    """
    reports = relay.failures
    if (
        len(reports) == processes
        and len({(failure.what, failure.why) for failure in reports.values()}) == 1
    ):
        return reports[min(reports)]
    rank = culprit(relay, failures)
    process = failures[rank]
    who = f"Rank {rank} (pid {process.pid})"
    ended = f"ended with {how_it_ended(process.exitcode)}"
    summary = reports[0].summary if 0 in reports else {}
    if rank in reports:
        own = reports[rank]
        failure = metrics.RunFailure(f"{who} {ended}: {own.what}", own.why, own.next)
    else:
        last = relay.last_line(rank)
        why = f"its last line: {last}" if last else "it wrote nothing to stderr."
        step = (
            f"This ended the run at step {relay.step}. " if relay.step else "This ended the run. "
        )
        command = config.command(steps=10) + " --headless"
        if process.exitcode == -signal.SIGKILL:
            why = (
                f"somebody killed it, or the kernel did because host memory ran out. Before "
                f"that, {why}"
            )
            command = "journalctl -k | grep -i 'out of memory'    or again    " + command
        failure = metrics.RunFailure(f"{who} {ended}.", step + why[0].upper() + why[1:], command)
    if summary:
        summary = {
            **summary,
            "error": {"what": failure.what, "why": failure.why, "next": failure.next},
        }
    return dataclasses.replace(failure, summary=summary)


def culprit(relay: Relay, failures: dict[int, Any]) -> int:
    """Return the rank whose end came first.

    A signal takes precedence over an exit code, and a rank's own error over one about its peers.
    """

    def order(rank: int) -> tuple[bool, bool, float, int]:
        code = failures[rank].exitcode
        failure = relay.failures.get(rank)
        words = failure.why if failure else relay.last_line(rank)
        killed = code < 0 and code != -signal.SIGTERM
        return (not killed, bool(_PEER.search(words)), relay.failed_at.get(rank, 0.0), rank)

    return min(failures, key=order)
