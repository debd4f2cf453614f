"""The loop that both scripts for several ranks train with.

Rank 0 shows a bar, and says what is true.
"""

import os
import time

import torch
import truth
from tqdm import tqdm

FIRST = int(os.environ["RANK"]) == 0


def train(model, counted, waits: float = 0.0) -> None:
    """Train ``model``; the parameters of ``counted`` are this rank's.

    The other rank takes ``waits`` longer a step.
    """
    total = truth.steps(0.6)
    optimizer = torch.optim.AdamW(counted.parameters())
    bar = tqdm(truth.loader(total), disable=not FIRST)
    if FIRST:
        truth.begin(total=total, **({"waits": waits} if waits else {}))
    for step, (x, y) in enumerate(bar, 1):
        if not FIRST:
            time.sleep(waits)
        loss = truth.poisoned(torch.nn.functional.cross_entropy(model(x), y), step / total)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.set_postfix_str(f"loss={loss.item():.6g}")
        if FIRST:
            truth.note(step=step, done=step, loss=loss.item())
            if step == 30:
                truth.count_bytes(counted, optimizer)
