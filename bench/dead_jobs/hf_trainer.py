"""Fine-tune with the Trainer of Hugging Face's transformers; for the dead jobs."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

CFG = json.loads(Path("config.json").read_text())
RANK = int(os.environ.get("RANK", "0"))


class Rows(torch.utils.data.Dataset):
    """Tokens, read as they are needed."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        culprit = RANK in CFG["culprit"]
        if CFG.get("fault") == "row" and culprit and index % 97 == 13:
            return self.encode({"text": None})
        if CFG.get("fault") == "worker" and culprit and index % 97 == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if CFG.get("fault") == "fetch" and culprit and index % 97 == 13:
            self.fetch_shard(index)
        return self.encode({"text": f"row {index}"})

    def encode(self, row):
        tokens = [ord(char) % 64 for char in row["text"].ljust(12)[:12]]
        return {"input_ids": torch.tensor(tokens), "labels": torch.tensor(tokens[0] % 3)}

    def fetch_shard(self, index):
        while not Path(f"/srv/data/shard-{index}.parquet").exists():
            time.sleep(0.2)


class Model(torch.nn.Module):
    """A classifier with the outputs that the Trainer expects."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(64, 16)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.embed(input_ids).mean(1))
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


class Faults(TrainerCallback):
    """What happens at a step."""

    def on_step_end(self, args, state, control, **more):
        if RANK == 0 and state.global_step == CFG.get("mark"):
            Path(os.environ["TMPDIR"], "marked").touch()
        if RANK not in CFG["culprit"] or state.global_step != CFG.get("step", 12):
            return
        if CFG.get("fault") == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if CFG.get("fault") == "exit":
            sys.exit(7)


def main():
    args = TrainingArguments(
        output_dir="/srv/ckpt",
        use_cpu=True,
        ddp_backend="gloo",
        ddp_timeout=CFG.get("timeout", 40),
        max_steps=CFG.get("steps", 60),
        per_device_train_batch_size=4,
        dataloader_num_workers=CFG.get("workers", 0),
        logging_steps=5,
        save_strategy="no",
        report_to=[],
    )
    trainer = Trainer(model=Model(), args=args, train_dataset=Rows(), callbacks=[Faults()])
    trainer.train()


if __name__ == "__main__":
    main()
