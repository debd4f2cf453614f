"""A loop with accelerate as its documentation shows it.

It has accumulation, and a tqdm bar over the optimizer's steps.
"""

import torch
import truth
from accelerate import Accelerator
from tqdm import tqdm

ACCUMULATE = 2
total = truth.steps() // ACCUMULATE
accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATE, cpu=True)
model = truth.network()
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer, loader = accelerator.prepare(model, optimizer, truth.loader(total * ACCUMULATE))
bar = tqdm(total=total)
truth.begin(ACCUMULATE, total=total)
step = 0
for x, y in loader:
    with accelerator.accumulate(model):
        loss = truth.poisoned(torch.nn.functional.cross_entropy(model(x), y), step / total)
        accelerator.backward(loss)
        optimizer.step()
        if accelerator.sync_gradients and step == 30:
            truth.count_bytes(model, optimizer.optimizer)
        optimizer.zero_grad()
    if accelerator.sync_gradients:
        step += 1
        bar.update(1)
        bar.set_postfix(loss=loss.item())
        truth.note(step=step, done=step, loss=float(f"{loss.item():.3g}"))
