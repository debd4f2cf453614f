"""FSDP2 on gloo under torchrun: two ranks, each with its shards; rank 0 shows a bar."""

import os

import torch
import torch.distributed as dist
import truth
from torch.distributed.fsdp import fully_shard
from tqdm import tqdm

dist.init_process_group("gloo")
first = int(os.environ["RANK"]) == 0
total = truth.steps(0.6)
torch.manual_seed(0)
model = truth.network()
mesh = dist.init_device_mesh("cpu", (2,)) if hasattr(dist, "init_device_mesh") else None
fully_shard(model, **({"mesh": mesh} if mesh is not None else {}))
optimizer = torch.optim.AdamW(model.parameters())
bar = tqdm(truth.loader(total), disable=not first)
if first:
    truth.begin(total=total)
for step, (x, y) in enumerate(bar, 1):
    loss = truth.poisoned(torch.nn.functional.cross_entropy(model(x), y), step / total)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bar.set_postfix_str(f"loss={loss.item():.6g}")
    if first:
        truth.note(step=step, done=step, loss=loss.item())
        if step == 30:
            truth.count_bytes(model, optimizer)
dist.destroy_process_group()
