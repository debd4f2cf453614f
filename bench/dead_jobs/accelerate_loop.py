"""Train with a loop of Hugging Face accelerate, started by its launcher; for the dead jobs."""

from __future__ import annotations

import datetime
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator, InitProcessGroupKwargs
from accelerate.logging import get_logger

CFG = json.loads(Path("config.json").read_text())
RANK = int(os.environ.get("RANK", "0"))
logger = get_logger(__name__, log_level="INFO")


def due(fault, step):
    return CFG.get("fault") == fault and RANK in CFG["culprit"] and step == CFG.get("step", 12)


def collate(rows):
    return torch.stack([row[0] for row in rows])


def evaluate(accelerator, model, step):
    scores = torch.tensor([float(step)])
    if due("save", step):
        upload_checkpoint(step)
    return accelerator.gather(scores).mean().item()


def upload_checkpoint(step):
    for _ in range(600):
        time.sleep(0.5)


def main():
    timeout = datetime.timedelta(seconds=CFG.get("timeout", 40))
    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(timeout=timeout)])
    accelerator.print(f"{accelerator.state}")
    data = torch.utils.data.TensorDataset(torch.randn(2048, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=4, collate_fn=collate)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        if step == CFG.get("steps", 50):
            break
        if due("shape", step):
            batch = batch[:, :7]
        loss = model(batch).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if step % 6 == 0:
            score = evaluate(accelerator, model, step)
            accelerator.print(f"step {step}: loss {loss.item():.4f}, score {score:.2f}")
        time.sleep(0.02)
    accelerator.print("done")
    accelerator.end_training()


if __name__ == "__main__":
    main()
