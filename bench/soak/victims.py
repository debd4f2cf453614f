"""Programs to attach to, of several kinds; Python 3.8 syntax.

``python victims.py KIND OUT [--steps N]``.

Writes OUT.pid when it runs, runs until OUT.stop appears and its steps are done, then writes OUT
(JSON): how many steps, their median, p99 and longest in seconds, the gaps above 1 ms as [end,
seconds] (CLOCK_MONOTONIC), its long garbage collections, and the loss and a digest of all
parameters after exactly N steps. Kinds: tight, alloc, sleep, train, loader (torch on the CPU),
cuda, cuda-compile, cuda-loader, ddp (under torchrun; rank R writes OUT-R), wait (as ddp; rank 0 is
late at times).
"""

import argparse
import gc
import json
import os
import sys
import time

SEED = 20


class Book:
    """Records the steps: all durations, up to a million, and the long gaps."""

    def __init__(self, out, steps, rank=0):
        self.out, self.steps, self.rank = out, steps, rank
        self.lengths, self.gaps = [], []
        self.collections, self.collecting = [], 0.0
        gc.callbacks.append(self.collected)
        self.done, self.loss, self.digest, self.agree = 0, None, None, None
        self.last = time.monotonic()

    def step(self):
        """Record a step; True while more are to come."""
        now = time.monotonic()
        length = now - self.last
        self.done += 1
        if length > 0.001 and len(self.gaps) < 1000000:
            self.gaps.append((now, length))
        if len(self.lengths) < 1000000:
            self.lengths.append(length)
        self.last = now
        return True

    def collected(self, phase, info):
        """Note garbage collections of more than 5 ms, as [end, seconds, generation].

        They stop every thread.
        """
        if phase == "start":
            self.collecting = time.monotonic()
        elif time.monotonic() - self.collecting > 0.005:
            now = time.monotonic()
            self.collections.append((now, now - self.collecting, info["generation"]))

    def stopped(self):
        return self.done >= self.steps and os.path.exists(self.out + ".stop")

    def close(self):
        ordered = sorted(self.lengths[5:]) or [0.0]
        body = {
            "steps": self.done,
            "median": ordered[len(ordered) // 2],
            "p99": ordered[int(len(ordered) * 0.99)],
            "max": ordered[-1],
            "gaps": self.gaps,
            "loss": self.loss,
            "digest": self.digest,
            "collections": self.collections,
        }
        name = self.out if self.rank is None else f"{self.out}-{self.rank}"
        with open(name + ".new", "w") as stream:
            json.dump(body, stream)
        os.rename(name + ".new", name)


def started(out, rank=None):
    name = out if rank is None else f"{out}-{rank}"
    with open(name + ".pid.new", "w") as stream:
        stream.write(str(os.getpid()))
    os.rename(name + ".pid.new", name + ".pid")


def tight(book):
    count = 0
    while True:
        count += 1
        if not count % 50:
            book.step()
            if not count % 5000 and book.stopped():
                return


def alloc(book):
    kept = {}
    count = 0
    while True:
        count += 1
        kept[count % 997] = [{"a": i, "b": [i] * 7} for i in range(20)]
        book.step()
        if not count % 200 and book.stopped():
            return


def sleep(book):
    while not book.stopped():
        time.sleep(0.005)
        book.step()


def model_of(torch, device, width, layers):
    torch.manual_seed(SEED)
    parts = []
    for _ in range(layers):
        parts += [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width)]
    return torch.nn.Sequential(*parts).to(device)


def digest_of(model):
    import ctypes
    import hashlib

    found = hashlib.sha256()
    for parameter in model.parameters():
        data = parameter.detach().float().cpu().contiguous()
        found.update(ctypes.string_at(data.data_ptr(), 4 * data.numel()))
    return found.hexdigest()


def train(
    book,
    device="cpu",
    width=64,
    layers=3,
    batch=32,
    compiled=False,
    loader=False,
    ranks=False,
    late=False,
):
    import torch

    if device == "cpu":
        torch.set_num_threads(1)
    rank = 0
    if ranks:
        import torch.distributed as dist

        rank = int(os.environ["RANK"])
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.use_deterministic_algorithms(device == "cuda" and not compiled)
    model = model_of(torch, device, width, layers)
    raw = model
    if ranks:
        model = torch.nn.parallel.DistributedDataParallel(model)
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    source = torch.Generator(device="cpu").manual_seed(SEED + rank)
    batches = iter(batches_of(torch, width, batch)) if loader else None
    stop = torch.zeros(1, device=device) if ranks else None
    announced = False
    while True:
        if batches is not None:
            data = next(batches, None)
            if data is None:
                batches = iter(batches_of(torch, width, batch))
                data = next(batches)
        else:
            data = torch.randn(batch, width, generator=source)
        data = data.to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = (forward(data) - data).pow(2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if late and rank == 0 and not book.done % 3:
            time.sleep(1.5)
        optimizer.step()
        if device == "cuda" and (ranks or not book.done % 10):
            torch.cuda.synchronize()
        if not announced and book.done >= 3:
            announced = True
            started(book.out, rank if ranks else None)
        book.step()
        if book.done == book.steps:
            book.loss, book.digest = repr(loss.item()), digest_of(raw)
            # the digest of a large model takes a quarter of a second, which is no gap between steps
            book.last = time.monotonic()
        if ranks and not book.done % 10:
            import torch.distributed as dist

            stop.fill_(float(book.stopped()))
            dist.all_reduce(stop)
            if stop.item() == dist.get_world_size():
                break
        elif not ranks and not book.done % 10 and book.stopped():
            break
    if ranks:
        import torch.distributed as dist

        dist.destroy_process_group()


def batches_of(torch, width, batch):
    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return batch * 40

        def __getitem__(self, index):
            return torch.randn(width, generator=torch.Generator().manual_seed(index))

    return torch.utils.data.DataLoader(Rows(), batch_size=batch, num_workers=2)


KINDS = {
    "tight": tight,
    "alloc": alloc,
    "sleep": sleep,
    "train": train,
    "loader": lambda book: train(book, loader=True),
    "cuda": lambda book: train(book, "cuda", 2048, 6, 256),
    "cuda-compile": lambda book: train(book, "cuda", 2048, 6, 256, compiled=True),
    "cuda-loader": lambda book: train(book, "cuda", 1024, 4, 64, loader=True),
    "ddp": lambda book: train(book, "cuda", 2048, 6, 256, ranks=True),
    "wait": lambda book: train(book, "cuda", 1024, 3, 64, ranks=True, late=True),
    "gloo": lambda book: train(book, ranks=True),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=0)
    args = parser.parse_args()
    rank = int(os.environ["RANK"]) if "RANK" in os.environ else None
    book = Book(args.out, args.steps, rank)
    if args.kind in ("tight", "alloc", "sleep"):
        started(args.out)
    KINDS[args.kind](book)
    book.close()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
