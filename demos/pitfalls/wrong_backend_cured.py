"""A regression on two GPUs, one process for each: torchrun --nproc-per-node 2 SCRIPT

Cured: NCCL, which goes from GPU to GPU.
"""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to train (default: 60)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()
    if torch.cuda.device_count() < 2:
        print("This training needs two CUDA GPUs.", file=sys.stderr)
        sys.exit(3)

    torch.set_float32_matmul_precision("high")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device), device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    started, warm, step = time.monotonic(), 0.0, 0
    going = True
    while going:
        inputs = torch.randn(4096, 2048, device=device)
        loss = F.mse_loss(model(inputs), inputs.abs())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 5 == 0 or step == args.steps:
            shown, now = loss.item(), time.monotonic()
            warm = warm or now
            late = torch.tensor(float(now > started + args.seconds), device=device)
            dist.broadcast(late, 0)
            going = step < args.steps and not late.item()
            if step > 5 and local_rank == 0:
                pace = 1e3 * (now - warm) / (step - 5)
                print(
                    f"step {step}  loss {shown:.3f}  {pace:.1f} ms/step over {dist.get_backend()}",
                    flush=True,
                )


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
    main()
    leave()
