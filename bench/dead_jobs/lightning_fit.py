"""Train with Lightning, which starts the other ranks itself; for the dead jobs."""

from __future__ import annotations

import datetime
import json
import os
import signal
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy

CFG = json.loads(Path("config.json").read_text())


class Module(lightning.LightningModule):
    """A regression with a validation."""

    def __init__(self):
        super().__init__()
        first, last = torch.nn.Linear(6, 24), torch.nn.Linear(24, 1)
        self.net = torch.nn.Sequential(first, torch.nn.ReLU(), last)
        self.names = {0: "easy", 1: "hard"}

    def due(self, fault, step):
        return (
            CFG.get("fault") == fault
            and self.global_rank in CFG["culprit"]
            and step == CFG.get("step", 12)
        )

    def training_step(self, batch, index):
        if self.due("kill", self.global_step):
            os.kill(os.getpid(), signal.SIGKILL)
        loss = self.net(batch[0]).square().mean()
        if self.due("nan", self.global_step):
            loss = loss * float("nan")
        if not torch.isfinite(loss):
            raise ValueError(f"loss is {loss.item()} in step {self.global_step}")
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, index):
        kind = 2 if self.due("metric", self.global_step) else index % 2
        self.log(f"val_{self.names[kind]}", self.net(batch[0]).mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def main():
    rows = torch.utils.data.TensorDataset(torch.randn(320, 6))
    loader = torch.utils.data.DataLoader(rows, batch_size=4)
    timeout = datetime.timedelta(seconds=CFG.get("timeout", 40))
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=CFG["devices"],
        strategy=DDPStrategy(process_group_backend="gloo", timeout=timeout),
        logger=False,
        enable_checkpointing=False,
        max_epochs=CFG.get("epochs", 2),
        val_check_interval=6,
        limit_val_batches=2,
        default_root_dir="/srv/tmp",
    )
    trainer.fit(Module(), loader, loader)


if __name__ == "__main__":
    main()
