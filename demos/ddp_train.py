"""Train an ordinary DistributedDataParallel model, one process per GPU.

A transformer encoder learns to sort.

torchrun --nproc-per-node 2 demos/ddp_train.py --steps 500

Without GPUs the processes train on the CPU over gloo.
"""

import argparse
import itertools
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None


class Sorter(nn.Module):
    """(samples, length) numbers → logits of the same numbers in order."""

    def __init__(self, numbers: int, length: int, width: int, depth: int):
        super().__init__()
        self.embedding = nn.Embedding(numbers, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, width // 32, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, numbers)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embedding(tokens) + self.positions))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20000, help="optimizer steps (default: 20000)")
    parser.add_argument(
        "--batch", type=int, help="samples in a batch of one rank (default: 16, on a GPU 64)"
    )
    args = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()

    torch.manual_seed(0)
    length, numbers = (128, 256) if on_gpu else (16, 64)
    tokens = torch.randint(numbers, (16384 if on_gpu else 2048, length))
    data = TensorDataset(tokens, tokens.sort(dim=1).values)
    sampler: DistributedSampler[TensorDataset] = DistributedSampler(data, drop_last=True)
    loader = DataLoader(
        data, batch_size=args.batch or (64 if on_gpu else 16), sampler=sampler, drop_last=True
    )
    model = Sorter(numbers, length, width=768 if on_gpu else 64, depth=8 if on_gpu else 2).to(
        device
    )
    model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4 if on_gpu else 1e-3)

    step = 0
    bar = tqdm(total=args.steps) if tqdm and rank == 0 else None
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            inputs, targets = (
                inputs.to(device, non_blocking=True),
                targets.to(device, non_blocking=True),
            )
            optimizer.zero_grad()
            loss = F.cross_entropy(
                model(inputs).flatten(0, 1), targets.flatten(), label_smoothing=0.1
            )
            loss.backward()
            optimizer.step()
            step += 1
            shown = step % 20 == 0 or step == args.steps
            if bar:
                bar.update()
                if shown:
                    bar.set_postfix(epoch=epoch, loss=f"{loss.item():.4f}")
            elif rank == 0 and shown:
                print(
                    f"epoch {epoch}  step {step}/{args.steps}  loss {loss.item():.4f}", flush=True
                )
            if step == args.steps:
                return


def leave() -> None:
    """End the process without the interpreter's teardown.

    With gloo in torch 2.13 the teardown aborts every third run.
    """
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    leave()
