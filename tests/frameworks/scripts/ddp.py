"""DistributedDataParallel on gloo under torchrun: two ranks, of which the second is slower."""

import os
import time

import torch
import torch.distributed as dist
import truth
from tqdm import tqdm

dist.init_process_group("gloo")
first = int(os.environ["RANK"]) == 0
total = truth.steps(0.6)
model = truth.network()
parallel = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters())
bar = tqdm(truth.loader(total), disable=not first)
if first:
    truth.begin(total=total, waits=0.03)
for step, (x, y) in enumerate(bar, 1):
    if not first:
        time.sleep(0.03)
    loss = truth.poisoned(torch.nn.functional.cross_entropy(parallel(x), y), step / total)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    bar.set_postfix_str(f"loss={loss.item():.6g}")
    if first:
        truth.note(step=step, done=step, loss=loss.item())
        if step == 30:
            truth.count_bytes(model, optimizer)
dist.destroy_process_group()
