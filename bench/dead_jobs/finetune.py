"""Fine-tune a small regression model; the second program of the dead jobs.

It differs from ``train.py`` in all that a reader of logs might hold on to: no class, no DDP, other
words, ranks that are spawned or log to files of their own, errors that are caught and raised anew.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

logger = logging.getLogger("finetune")
OPT = json.loads(Path("config.json").read_text())


class DatasetError(RuntimeError):
    """A sample could not be used."""


def is_due(fault, step, rank):
    return OPT.get("fault") == fault and rank in OPT["culprit"] and step == OPT.get("step", 15)


def parse_row(step, rank):
    text = "0.25;0.5;1"
    if is_due("row", step, rank):
        text = "0.25;0.5"
    first, second, target = text.split(";")
    return [float(first), float(second)], float(target)


def get_batch(step, rank):
    try:
        rows = [parse_row(step, rank) for _ in range(8)]
    except ValueError as error:
        raise DatasetError(f"bad sample in part-{rank:05}.csv, line {step * 8}") from error
    return torch.tensor([row for row, _ in rows]), torch.tensor([target for _, target in rows])


def wait_for_part(name):
    logger.info("waiting for %s to be downloaded", name)
    while not Path("/srv/data", name).exists():
        time.sleep(0.2)


def sync_gradients(model):
    for weight in model.parameters():
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()


def start_debug_server(**options):
    from torch.distributed import debug

    debug.start_debug_server(**options)


def check_finite(loss, step, rank):
    """Stop all ranks if one has a loss that is not finite."""
    if is_due("nan", step, rank):
        loss = loss * float("nan")
    bad = torch.tensor([0.0 if torch.isfinite(loss) else 1.0])
    if bad.item():
        logger.warning("loss became %s at iteration %d", loss.item(), step)
    dist.all_reduce(bad)
    if bad.item():
        raise ArithmeticError(f"non-finite loss on {int(bad.item())} rank(s), iteration {step}")


def gather_scores(score, step, rank):
    scores = [None] * dist.get_world_size()
    if is_due("pickle", step, rank):
        score = {"score": score, "render": lambda value: f"{value:.3f}"}
    dist.all_gather_object(scores, score)
    return sum(scores) / len(scores)


def save_state(model, step, rank):
    state = {"model": model.state_dict(), "notes": {"step": step}}
    folder = Path("/srv/ckpt", f"step-{step}")
    if is_due("save", step, rank):
        state["model"] = {name: Broken(value) for name, value in state["model"].items()}
    dcp.save(state, checkpoint_id=str(folder))
    if rank == 0:
        logger.info("checkpoint %s", folder)


class Broken(torch.Tensor):
    """A tensor whose storage is gone, as after an offload that went wrong."""

    def __new__(cls, value):
        return value.as_subclass(cls)

    def detach(self):
        raise BufferError("tensor was offloaded and its host copy has been released")


def run(rank, size):
    setup_logging(rank)
    os.environ["RANK"], os.environ["WORLD_SIZE"] = str(rank), str(size)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=OPT.get("timeout", 60)))
    logger.info("process group of %d is up, this is rank %d", size, rank)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if OPT.get("plain"):  # without torch's hook, which names the rank before each line
        sys.excepthook = sys.__excepthook__
    if OPT.get("debug_server"):
        start_debug_server(dump_dir="left/debug", dump_interval=6.0, start_method="spawn")
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    for step in range(OPT.get("steps", 40)):
        inputs, targets = get_batch(step, rank)
        loss = torch.nn.functional.mse_loss(model(inputs)[:, 0], targets)
        check_finite(loss, step, rank)
        if is_due("extra", step, rank):
            dist.barrier()
        optimizer.zero_grad()
        loss.backward()
        sync_gradients(model)
        optimizer.step()
        if is_due("exit", step, rank):
            logger.error("could not renew the lease of the data volume, giving up")
            sys.exit(1)
        if is_due("kill", step, rank):
            os.kill(os.getpid(), signal.SIGKILL)
        if is_due("first attempt", step, rank) and attempt == 0:
            raise TimeoutError("tokenizer service did not answer")
        if step == 25 and rank == OPT.get("then") and attempt == 1:
            raise LookupError("no vocabulary for language 'xx'")
        if step % 5 == 0:
            logger.info("iteration %d: loss=%.5f lr=1.0e-03", step, loss.item())
            score = gather_scores(loss.item(), step, rank)
            if rank == 0:
                logger.info("mean score %.5f", score)
        if step % 10 == 5:
            if is_due("stuck", step, rank):
                wait_for_part(f"part-{rank + 1:05}.csv")
            if OPT.get("monitored"):
                dist.monitored_barrier(timeout=datetime.timedelta(seconds=10))
            if OPT.get("save"):
                save_state(model, step, rank)
        time.sleep(0.02)
    logger.info("finished after %d iterations", step + 1)
    dist.destroy_process_group()


def setup_logging(rank):
    form = "%(asctime)s | %(levelname)-7s | %(message)s"
    options = {}
    if OPT.get("rank_files"):
        Path("left/logs").mkdir(exist_ok=True)
        options = {"filename": f"left/logs/finetune-r{rank:03}.log"}
    logging.basicConfig(format=form, datefmt="%d/%m %H:%M:%S", level=logging.INFO, **options)
    if OPT.get("rank_files"):
        sys.excepthook = lambda *raised: logger.critical("uncaught exception", exc_info=raised)


if __name__ == "__main__":
    if "RANK" in os.environ:
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", "29500"
        mp.spawn(run, args=(OPT["spawn"],), nprocs=OPT["spawn"])
