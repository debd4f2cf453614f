"""Train a model that is split into stages, one on each rank; the third program of the dead jobs.

Ranks exchange activations and gradients by ``send`` and ``recv``, and statistics in a ring by
``batch_isend_irecv``. Gloo's flight recorder has no entries of these calls, so that what is left
are logs and stacks; NCCL's has.
"""

from __future__ import annotations

import datetime
import faulthandler
import json
import logging
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

STAGE = int(os.environ["RANK"])
STAGES = int(os.environ["WORLD_SIZE"])
CFG = json.loads(Path("config.json").read_text())
ROWS, WIDTH = CFG.get("rows", 8), 24
DEVICE = torch.device("cpu")
if CFG.get("backend") == "nccl":
    DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
logger = logging.getLogger("pipeline")


def due(fault, step):
    return CFG.get("fault") == fault and STAGE in CFG["culprit"] and step == CFG.get("step", 12)


class Stage(torch.nn.Module):
    """A part of the model, and the calls that bring its inputs and take its outputs away."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self.vocabulary = {name: number for number, name in enumerate("abcdefgh")}

    def first_input(self, step, micro):
        if due("part", step) and micro == 1:
            self.wait_for_part(Path("/srv/data", f"part-{step:04}.bin"))
        return torch.full((ROWS, WIDTH), 0.01 * (step + micro), device=DEVICE)

    def wait_for_part(self, path):
        logger.info("waiting for %s", path)
        while not path.exists():
            time.sleep(0.1)

    def recv_forward(self, step, micro):
        if STAGE == 0:
            return self.first_input(step, micro)
        inputs = torch.empty(ROWS, WIDTH, device=DEVICE)
        tag = micro + 7 if due("tag", step) else micro
        dist.recv(inputs, src=STAGE - 1, tag=tag)
        return inputs

    def send_forward(self, outputs, step, micro):
        if STAGE == STAGES - 1 or (due("skip", step) and micro == 2):
            return
        to = STAGE + 1
        if due("peer", step):
            to = (STAGE + 2) % STAGES
        if due("wide", step):
            outputs = torch.cat([outputs, outputs])
        dist.send(outputs, dst=to, tag=micro)

    def compute(self, inputs, step):
        if due("error", step):
            return inputs * self.vocabulary["z"]
        if due("kill", step):
            os.kill(os.getpid(), signal.SIGKILL)
        while due("tune", step):
            self.tune(inputs)
        return torch.tanh(self.layer(inputs))

    def tune(self, inputs):
        for width in range(1, WIDTH):
            torch.matmul(inputs[:, :width].T, inputs)
        time.sleep(0.001)

    def recv_backward(self, like, micro):
        if STAGE == STAGES - 1:
            return torch.ones_like(like)
        grad = torch.empty(ROWS, WIDTH, device=DEVICE)
        dist.recv(grad, src=STAGE + 1, tag=100 + micro)
        return grad

    def send_backward(self, grad, micro):
        if STAGE > 0:
            dist.send(grad, dst=STAGE - 1, tag=100 + micro)


def run_schedule(stage, step):
    """All forwards, then all backwards."""
    done = []
    micros = CFG.get("micros", 4) + (1 if due("extra", step) else 0)
    for micro in range(micros):
        inputs = stage.recv_forward(step, micro).requires_grad_()
        outputs = stage.compute(inputs, step)
        stage.send_forward(outputs.detach(), step, micro)
        done.append((inputs, outputs))
    for micro, (inputs, outputs) in enumerate(done):
        outputs.backward(stage.recv_backward(outputs, micro))
        stage.send_backward(inputs.grad, micro)


def exchange_statistics(value, step):
    """Give a number to the next rank, and take one from the rank before."""
    after, before = (STAGE + 1) % STAGES, (STAGE - 1) % STAGES
    mine = torch.tensor([float(value)], device=DEVICE)
    theirs = torch.zeros(1, device=DEVICE)
    if CFG.get("fault") == "circle" and step == CFG.get("step", 12):
        dist.recv(theirs, src=before)
        dist.send(mine, dst=after)
        return theirs
    calls = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, theirs, before)]
    if due("half", step):
        calls.pop()
    for request in dist.batch_isend_irecv(calls):
        request.wait()
    return theirs


@record
def main():
    logging.basicConfig(
        format=f"%(asctime)s.%(msecs)03d {CFG.get('prefix', 'stage {}').format(STAGE)} %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=logging.INFO,
    )
    if CFG.get("usr1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    timeout = datetime.timedelta(seconds=CFG.get("timeout", 40))
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group(CFG.get("backend", "gloo"), timeout=timeout)
    logger.info("up on %s, %d stages", os.uname().nodename, STAGES)
    torch.manual_seed(STAGE)
    stage = Stage().to(DEVICE)
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    begun = time.monotonic()
    for step in range(CFG.get("steps", 30)):
        optimizer.zero_grad()
        run_schedule(stage, step)
        optimizer.step()
        if step % 4 == 0:
            other = exchange_statistics(time.monotonic() - begun, step)
            logger.info("step %d, the stage before needed %.2f s", step, other.item())
        if STAGE == 0 and step == CFG.get("mark"):
            Path(os.environ["TMPDIR"], "marked").touch()
        time.sleep(0.02)
    logger.info("training finished")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
