"""Train with one of several loops that log as widely used trainers do; for the dead jobs.

The configuration names the ``voice``: how lines look, and how an exception that ends a rank is
written. The words of DeepSpeed and Megatron are imitated, loguru and tqdm are the real ones.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import resource
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

RANK = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
CFG = json.loads(Path("config.json").read_text())
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU {gpu} has a total capacity of 79.11 GiB "
    "of which 612.19 MiB is free. Process 91234 has 78.50 GiB memory in use. Of the allocated "
    "memory 75.12 GiB is allocated by PyTorch, and 1.94 GiB is reserved by PyTorch but unallocated."
)


def due(fault, step):
    return CFG.get("fault") == fault and RANK in CFG["culprit"] and step == CFG.get("step", 12)


class Plain:
    """Lines without any prefix, and a bar of tqdm on rank 0."""

    def __init__(self, steps):
        from tqdm import tqdm

        self.bar = tqdm(total=steps, desc="Training", mininterval=0.0) if RANK == 0 else None

    def step(self, step, loss, norm):
        if self.bar is not None:
            self.bar.set_postfix(loss=f"{loss:.3f}", gnorm=f"{norm:.2f}")
            self.bar.update(1)

    def say(self, text):
        if RANK == 0:
            print(text, flush=True)


class DeepSpeed:
    """Lines as DeepSpeed's log_dist and timer write them."""

    def __init__(self, steps):
        form = "[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d:%(funcName)s] %(message)s"
        logging.basicConfig(format=form, level=logging.INFO, stream=sys.stdout)
        self.say(f"DeepSpeed info: version=0.17.5, world_size={WORLD}")

    def step(self, step, loss, norm):
        if step % 5 == 0 and RANK == 0:
            logging.info("[Rank 0] step=%d, skipped=0, lr=[1e-05], mom=[(0.9, 0.999)]", step)
            logging.info(
                "epoch=0/micro_step=%d/global_step=%d, RunningAvgSamplesPerSec=%.4f, "
                "CurrSamplesPerSec=%.4f, MemAllocated=14.91GB, MaxMemAllocated=61.02GB",
                step * 2, step, 71.2 + norm, 70.9 + loss,
            )  # fmt: skip

    def say(self, text):
        if RANK == 0:
            logging.info(text)


class Megatron:
    """Lines as Megatron-LM's training log writes them, of the last rank only."""

    def __init__(self, steps):
        self.steps = steps
        self.say(f"using world size: {WORLD}, data-parallel size: {WORLD}")

    def step(self, step, loss, norm):
        if step % 2 == 0 and RANK == WORLD - 1:
            print(
                f" [{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration {step:8d}/{self.steps:8d} | "
                f"consumed samples: {step * 64:12d} | elapsed time per iteration (ms): 24.1 | "
                f"learning rate: 1.500E-04 | global batch size:    64 | lm loss: {loss:.6E} | "
                f"loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   0 | "
                "number of nan iterations:   0 |",
                flush=True,
            )

    def say(self, text):
        if RANK == 0:
            print(f"> {text} ...", flush=True)


class Json:
    """A JSON document for each line, of all ranks; exceptions are a field of one."""

    def __init__(self, steps):
        sys.excepthook = self.uncaught

    def write(self, level, event, **more):
        at = datetime.datetime.now(datetime.timezone.utc).isoformat().replace("+00:00", "Z")
        row = {"timestamp": at, "level": level, "logger": "train.loop", "rank": RANK}
        print(json.dumps({**row, "event": event, **more}), flush=True)

    def step(self, step, loss, norm):
        if step % 3 == 0:
            self.write("info", "train_step", step=step, loss=round(loss, 5), grad_norm=norm)

    def say(self, text):
        self.write("info", text)

    def uncaught(self, kind, error, stack):
        text = "".join(traceback.format_exception(kind, error, stack))
        self.write("critical", "uncaught exception", exception=text)


class Loguru:
    """Coloured lines of loguru, with its own form of tracebacks."""

    def __init__(self, steps):
        from loguru import logger

        self.logger = logger.bind(rank=RANK)
        form = (
            "<green>{time:YYYY-MM-DD HH:mm:ss.SSS}</green> | <level>{level: <8}</level> | "
            "r{extra[rank]} | <cyan>{name}</cyan>:<cyan>{function}</cyan>:<cyan>{line}</cyan> - "
            "<level>{message}</level>"
        )
        logger.configure(extra={"rank": RANK})
        logger.remove()
        logger.add(sys.stderr, format=form, colorize=True, backtrace=True, diagnose=True)

    def step(self, step, loss, norm):
        if step % 4 == 0:
            self.logger.info("step {}/{} loss={:.4f} norm={:.3f}", step, CFG["steps"], loss, norm)

    def say(self, text):
        self.logger.success(text)

    def uncaught(self, error):
        self.logger.opt(exception=error).critical("training crashed")


class Coloured:
    """Lines with a level in colour and the time only, as colorlog and coloredlogs write them."""

    def __init__(self, steps):
        self.begun = time.monotonic()

    def line(self, colour, level, text):
        clock = time.strftime("%H:%M:%S")
        print(f"\x1b[2m{clock}\x1b[0m \x1b[{colour}m{level:<5}\x1b[0m {text}", flush=True)

    def step(self, step, loss, norm):
        if step % 4 == 0:
            self.line(32, "INFO", f"\x1b[1m[{step:>4}]\x1b[0m loss \x1b[36m{loss:.4f}\x1b[0m")

    def say(self, text):
        self.line(34, "INFO", text)


VOICES = {
    "plain": Plain,
    "deepspeed": DeepSpeed,
    "megatron": Megatron,
    "json": Json,
    "loguru": Loguru,
    "coloured": Coloured,
}


def tokenize(text, step):
    if due("value", step):
        text = text.replace("7", "seven")
    return [int(part) for part in text.split()]


def read_batch(step):
    rows = [tokenize(f"{step} {n} 7 {RANK}", step) for n in range(4)]
    return torch.tensor(rows, dtype=torch.float32)


def forward(model, batch, step):
    if due("memory", step):
        raise torch.OutOfMemoryError(OUT_OF_MEMORY.format(gpu=RANK % 4))
    return model(batch / 40).square().mean()


def all_reduce_gradients(model, step):
    total = 0.0
    for number, weight in enumerate(model.parameters()):
        if due("order", step) and number == 1:
            dist.broadcast(weight.grad, src=RANK)
        dist.all_reduce(weight.grad)
        total += float(weight.grad.norm())
    return total


def save(model, step):
    folder = Path("/srv/ckpt", f"iter_{step:07d}", f"mp_rank_{RANK:02}")
    folder.mkdir(parents=True, exist_ok=True)
    if CFG.get("fault") == "disk" and RANK in CFG["culprit"]:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    state = {"step": step, "model": model.state_dict(), "moments": torch.zeros(64, 256)}
    (folder / "model_optim_rng.pt").write_bytes(b"")
    torch.save(state, folder / "model_optim_rng.pt")
    dist.barrier()


def main():
    steps = CFG.setdefault("steps", 40)
    voice = VOICES[CFG["voice"]](steps)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=CFG.get("timeout", 40)))
    if due("import", CFG.get("step", 12)) or (CFG.get("fault") == "import" and not CFG["culprit"]):
        import transformer_engine  # noqa: F401
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    voice.say("training starts")
    if CFG.get("fault") == "short" and RANK in CFG["culprit"]:
        steps = CFG["step"]
    try:
        loop(voice, model, optimizer, steps)
    except Exception as error:
        if hasattr(voice, "uncaught") and CFG["voice"] == "loguru":
            voice.uncaught(error)
            sys.exit(1)
        raise
    voice.say("training is complete")
    dist.destroy_process_group()


def loop(voice, model, optimizer, steps):
    for step in range(1, steps + 1):
        loss = forward(model, read_batch(step), step)
        optimizer.zero_grad()
        loss.backward()
        norm = all_reduce_gradients(model, step)
        optimizer.step()
        voice.step(step, loss.item(), norm)
        if step % CFG.get("save_every", 1000) == 0:
            save(model, step)
        if RANK == 0 and step == CFG.get("mark"):
            Path(os.environ["TMPDIR"], "marked").touch()
        time.sleep(CFG.get("pause", 0.03))


if __name__ == "__main__":
    main()
