"""Train a small text classifier on several ranks, with one fault that its configuration names.

This is the program whose remains lie in ``tests/data/dead_jobs``. It is written as users write such
programs, and each fault happens in the function where it would happen to them, so that tracebacks
and stack dumps look like real ones. ``make.py`` writes the configuration and starts the ranks.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import faulthandler
import json
import logging
import os
import pickle
import queue
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, Dataset

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
LOCAL_RANK = int(os.environ.get("LOCAL_RANK", "0"))
LABELS = {"negative": 0, "neutral": 1, "positive": 2}
OUT_OF_MEMORY = (
    "CUDA out of memory. Tried to allocate 2.25 GiB. GPU {gpu} has a total capacity of 79.11 GiB "
    "of which 1.04 GiB is free. Including non-PyTorch memory, this process has 78.05 GiB memory in "
    "use. Of the allocated memory 74.20 GiB is allocated by PyTorch, and 2.31 GiB is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation "
    "for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
)
DEVICE_ERROR = (
    "CUDA error: unspecified launch failure\nCUDA kernel errors might be asynchronously reported "
    "at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider "
    "passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side "
    "assertions.\n"
)
log = logging.getLogger("train")


class Corpus(Dataset):
    """Rows of text with labels, read from shards as they are needed."""

    def __init__(self, config, hits):
        self.config = config
        self.hits = hits
        random.seed(RANK)
        self.rows = [[random.randrange(256) for _ in range(16)] for _ in range(512)]
        self.labels = [random.choice(list(LABELS)) for _ in self.rows]
        self.handles = []
        if hits("files", -1):
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
        if config.get("file"):
            self.header = Path(config["file"]).read_text()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if self.config.get("shard") and self.hits("read-hang", index):
            self.read_shard(self.config["shard"])
        if self.hits("worker-killed", index):
            os.kill(os.getpid(), signal.SIGKILL)
        tokens = self.rows[index]
        label = self.labels[index]
        if self.hits("key", index):
            label = label.replace("t", "")
        if self.hits("files", -1):
            self.handles.append(open(self.config["file"]))  # noqa: SIM115
        pad = int(self.config.get("pad", 0))
        return torch.tensor(tokens + [0] * pad), LABELS[label]

    def read_shard(self, path):
        print(f"rank {RANK} opens {path}", flush=True)
        with open(path) as file:
            return file.read().split()


class Classifier(nn.Module):
    """A model of a few thousand parameters."""

    def __init__(self, config, hits):
        super().__init__()
        self.hits = hits
        self.flash = config.get("attention") == "flash"
        hidden = 32 + (8 if hits("model", -1) else 0)
        self.embed = nn.Embedding(256, hidden)
        self.inner = nn.Linear(hidden, 32)
        self.extra = nn.Linear(hidden, 32) if config.get("fault") == "unused" else None
        self.head = nn.Linear(32, len(LABELS))
        if self.flash:
            from flash_attn import flash_attn_func

            self.attend = flash_attn_func

    def forward(self, tokens):
        hidden = self.embed(tokens).mean(1)
        if self.hits("oom-gpu") and hidden.is_cuda:
            hidden = hidden + torch.empty(1 << 42, device=hidden.device)
        if self.hits("device") and hidden.is_cuda:
            hidden = self.embed(tokens + 100_000).mean(1)
        if self.hits("oom-gpu"):
            raise torch.OutOfMemoryError(OUT_OF_MEMORY.format(gpu=LOCAL_RANK))
        if self.hits("device") and not hidden.is_cuda:
            raise torch.AcceleratorError(DEVICE_ERROR)
        return self.head(torch.relu(self.inner(hidden)))


class Trainer:
    """The loop, with its metrics, evaluations and checkpoints."""

    def __init__(self, config):
        self.config = config
        self.step = -1
        self.advanced = time.monotonic()
        self.device = torch.device("cpu")
        self.ddp = config.get("ddp", True)
        if config["backend"] == "nccl":
            self.device = torch.device("cuda", LOCAL_RANK)
            torch.cuda.set_device(self.device)
        if config.get("cgroup") and RANK in config["culprit"]:
            Path(config["cgroup"], "cgroup.procs").write_text(str(os.getpid()))

    def hits(self, fault, index=None):
        """Tell whether this rank is to have this fault now."""
        due = self.step == self.config.get("step", 12) if index is None else True
        if index is not None and index >= 0:
            due = index == self.config.get("row", 97)
        return self.config.get("fault") == fault and RANK in self.config["culprit"] and due

    def setup(self):
        timeout = datetime.timedelta(seconds=self.config.get("timeout", 60))
        dist.init_process_group(self.config["backend"], timeout=timeout)
        self.say(f"rank {RANK} of {WORLD} is ready on {os.uname().nodename}", everybody=True)
        half = WORLD // 2
        self.lower = dist.new_group(list(range(half)), timeout=timeout)
        self.all_too = dist.new_group(list(range(WORLD)), timeout=timeout)
        torch.manual_seed(0)
        corpus = Corpus(self.config, self.hits)
        workers = int(self.config.get("workers", 0))
        self.loader = DataLoader(corpus, batch_size=8, num_workers=workers)
        model = self.module = Classifier(self.config, self.hits).to(self.device)
        if self.config.get("resume"):
            self.resume(model)
        self.model = nn.parallel.DistributedDataParallel(model) if self.ddp else model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if self.config.get("dump_after") and self.device.type == "cpu":  # NCCL has a watchdog
            threading.Thread(target=self.watch, name="watchdog", daemon=True).start()
        if self.config.get("prefetch"):
            self.ready = queue.Queue(2)
            threading.Thread(target=self.prefetch, name="prefetch", daemon=True).start()

    def resume(self, model):
        path = Path(self.config["resume"].format(rank=RANK))
        state = torch.load(path, map_location="cpu")
        model.load_state_dict(state["model"], strict=False)
        self.say(f"rank {RANK} resumes {path} at step {state['step']}", everybody=True)

    def batches(self):
        while True:
            if self.config.get("prefetch"):
                yield self.ready.get()
                continue
            yield from self.loader

    def prefetch(self):
        for number, batch in enumerate(self.loader):
            self.ready.put(self.augment(number, batch))

    def augment(self, number, batch):
        tokens, labels = batch
        weights = [1.0, 0.5, 0.25]
        if self.config.get("fault") == "thread" and RANK in self.config["culprit"]:
            number += 100 * (number == self.config.get("step", 12))
        return tokens, labels, weights[min(number, 2) if number < 100 else number]

    def train(self):
        steps = self.config.get("steps", 40)
        if self.hits("uneven", -1):
            steps = self.config["step"]
        for step, batch in zip(range(steps), self.batches(), strict=False):
            self.step, self.advanced = step, time.monotonic()
            if self.agree_to_stop():
                self.save_checkpoint()
                self.say(f"stopped by SIGTERM at step {step}, state saved", everybody=True)
                return
            loss = self.train_step(batch)
            if step % 4 == 0:
                self.log_metrics(loss)
            if step and step % self.config.get("eval_every", 10) == 0:
                self.evaluate()
            if self.config.get("checkpoints") and step and step % 10 == 0:
                self.save_checkpoint()
            if RANK == 0 and step == self.config.get("mark"):
                Path(os.environ["TMPDIR"], "marked").touch()
            time.sleep(self.config.get("pause", 0.02))
        self.say(f"rank {RANK} has done its {steps} steps", everybody=True)

    def agree_to_stop(self):
        if not self.config.get("save_on_term"):
            return False
        stop = torch.tensor([float(self.config.get("stop", False))], device=self.device)
        dist.all_reduce(stop)
        return bool(stop.item())

    def train_step(self, batch):
        tokens, labels = batch[0].to(self.device), batch[1].to(self.device)
        self.check_batch(tokens, labels)
        loss = nn.functional.cross_entropy(self.model(tokens), labels)
        if self.hits("nan"):
            loss = loss * float("inf") * 0
        self.check_loss(loss)
        self.optimizer.zero_grad()
        loss.backward()
        if not self.ddp:
            for parameter in self.model.parameters():
                dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        self.optimizer.step()
        return loss

    def check_batch(self, tokens, labels):
        if self.hits("assertion"):
            labels = labels + 4
        classes = len(LABELS)
        if self.hits("value"):
            float(self.config.get("cell", "1.2.5"))
        assert int(labels.max()) < classes, f"label {int(labels.max())} with {classes} classes"
        if self.hits("segv"):
            self.tokenize(1)
        if self.hits("abort"):
            os.abort()
        if self.hits("sigkill"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.hits("exit"):
            sys.exit(3)
        if self.hits("index"):
            self.loader.dataset[self.step * 8 + len(self.loader.dataset)]
        if self.hits("oom-host"):
            self.cache_features()
        if self.hits("slow-once"):
            self.say(f"rank {RANK} is slow: step {self.step - 1} took 6.0 s", everybody=True)
            time.sleep(6)
        if self.config.get("then") == RANK and self.step == 18:
            raise RuntimeError(f"tokenizer has no entry for id {int(tokens.max()) + 31744}")

    def tokenize(self, address):
        return ctypes.string_at(address, 8)

    def cache_features(self):
        if self.config.get("address_space"):
            size = self.config["address_space"] << 20
            resource.setrlimit(resource.RLIMIT_AS, (size, size))
        features = []
        while True:
            features.append(torch.ones(1 << 23))

    def check_loss(self, loss):
        value = loss.item()
        if value != value or value == float("inf"):
            raise FloatingPointError(f"loss is {value} at step {self.step}, stopping")

    def log_metrics(self, loss):
        mean = loss.detach().clone()
        seen = torch.zeros(3, device=self.device)
        if self.hits("size"):
            seen = torch.zeros(5, device=self.device)
        if self.hits("dtype"):
            seen = seen.double()
        if self.hits("order"):
            dist.broadcast(seen, src=0)
            dist.all_reduce(mean)
        elif self.hits("group"):
            dist.all_reduce(mean, group=self.lower if RANK < WORLD // 2 else self.all_too)
            dist.broadcast(seen, src=0)
        elif self.hits("groups"):
            dist.all_reduce(seen)
            dist.all_reduce(mean, group=self.all_too)
        elif self.config.get("fault") == "groups" and self.step == self.config["step"]:
            dist.all_reduce(mean, group=self.all_too)
            dist.all_reduce(seen)
        else:
            dist.all_reduce(mean)
            dist.all_reduce(seen)
            dist.broadcast(seen, src=0)
        if RANK == 0 or self.config.get("chatty"):
            self.report({"step": self.step, "loss": mean / WORLD})

    def report(self, metrics):
        if not self.hits("json"):
            metrics["loss"] = round(metrics["loss"].item(), 4)
        if self.config.get("log") == "json" or self.hits("json"):
            print(json.dumps(metrics), flush=True)
        else:
            self.say(" ".join(f"{name} {value}" for name, value in metrics.items()), everybody=True)

    def evaluate(self):
        if self.hits("barrier"):
            return
        wanted, found = 4, 0
        for tokens, labels in self.loader:
            with torch.no_grad():
                guess = self.module(tokens.to(self.device)).argmax(1).cpu()
            found += int((guess == labels).sum())
            while self.hits("loop") and found >= wanted:
                found = self.sample_more(found)
            if found >= wanted:
                break
        if self.hits("slow"):
            time.sleep(self.config.get("seconds", 60))
        if self.config.get("retry") == RANK:
            self.publish(found)
        total = torch.tensor([float(found)], device=self.device)
        dist.all_reduce(total)
        if RANK == 0:
            self.say(f"eval step {self.step} correct {int(total)}")

    def publish(self, found):
        try:
            raise ConnectionRefusedError(111, f"Connection refused while sending {found}")
        except OSError:
            log.exception("metrics server: error, will try again")

    def sample_more(self, found):
        time.sleep(0.001)
        return max(found, 4)

    def save_checkpoint(self):
        folder = Path(self.config["checkpoints"])
        folder.mkdir(parents=True, exist_ok=True)
        if self.hits("fsize"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        sharded = self.config.get("sharded")
        if RANK == 0 or sharded:
            state = {"step": self.step, "model": self.module.state_dict()}
            state["optimizer"] = torch.zeros(self.config.get("state_kib", 64), 256)
            path = folder / (f"step_{self.step}_rank{RANK}.pt" if sharded else "last.pt")
            torch.save(state, path)
            if self.hits("slow-save"):
                self.upload(path)
            self.say(f"saved {path}", everybody=True)
        dist.barrier()

    def upload(self, path):
        for _ in range(self.config.get("seconds", 60)):
            time.sleep(1.0)
        return path

    def say(self, text, everybody=False):
        if everybody or RANK == 0:
            if self.config.get("log") == "logging":
                log.info(text)
            else:
                print(text, flush=True)

    def watch(self):
        """Write the flight recorder's dump when no step has ended for a while, as NCCL would."""
        while self.step < 0 or time.monotonic() - self.advanced < self.config["dump_after"]:
            time.sleep(0.5)
        self.say(f"rank {RANK} has made no step for {self.config['dump_after']} s", everybody=True)
        if self.config.get("stacks"):
            faulthandler.dump_traceback(all_threads=True)
        dump_flight_recorder(self.config)


def dump_flight_recorder(config):
    import torch._C._distributed_c10d as c10d

    path = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", "/srv/train/left/nccl_trace_rank_")
    if config.get("dump") == "json":
        Path(f"{path}{RANK}.json").write_bytes(c10d._dump_fr_trace_json())
    else:
        data = c10d._dump_fr_trace()
        assert pickle.loads(data)["version"]
        Path(f"{path}{RANK}").write_bytes(data)


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    config = json.loads(parser.parse_args().config.read_text())
    if config.get("log") == "logging":
        form = f"%(asctime)s %(levelname)s [rank {RANK}] %(name)s: %(message)s"
        logging.basicConfig(format=form, level=logging.INFO)
    if config.get("usr1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    if config.get("stacks_after"):
        faulthandler.dump_traceback_later(config["stacks_after"], exit=False)
    if config.get("save_on_term"):
        signal.signal(signal.SIGTERM, lambda *_: config.update(stop=True))
    trainer = Trainer(config)
    try:
        trainer.setup()
        trainer.train()
    except Exception:
        if config.get("dump_after") and config["backend"] == "gloo":
            dump_flight_recorder(config)
        raise
    if config.get("barrier_at_end"):
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
