"""Healthy trainings in other people's loops."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from bench.time_gym.subjects.common import Training, adamw, main, named, pictures, residual_net
from bench.time_gym.subjects.inputs import workers_of


def hf_trainer(training: Training) -> None:
    """GPT-2 in the Trainer of transformers."""
    from transformers import (
        GPT2Config,
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    class Told(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            training.made()
            control.should_training_stop = training.over

    length = training.pick(512, 16)
    config = GPT2Config(
        vocab_size=training.pick(8192, 64),
        n_positions=length,
        n_embd=training.pick(1024, 16),
        n_layer=training.pick(8, 2),
        n_head=training.pick(16, 2),
    )
    tokens = torch.randint(0, config.vocab_size, (512, length))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=training.pick(32, 2),
        max_steps=1_000_000,
        bf16=training.cuda,
        use_cpu=not training.cuda,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=training.pick(2, 0),
        dataloader_persistent_workers=training.cuda,
    )
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=data, callbacks=[Told()]).train()


def accelerated(training: Training) -> None:
    """A classifier prepared by accelerate.

    Its epochs are long, as the first batch of each is waited for, and its pictures are of bytes: as
    floats they take the workers longer than the GPU needs for a step.
    """
    from accelerate import Accelerator

    accelerator = Accelerator(
        mixed_precision="bf16" if training.cuda else "no", cpu=not training.cuda
    )
    net = residual_net(training)
    images, kinds = pictures(training)
    images = images.mul(32).add(128).clamp(0, 255).to("cpu", torch.uint8)
    data = TensorDataset(images, kinds.cpu())
    workers = workers_of(training)
    loader = DataLoader(
        data,
        batch_size=len(images),
        sampler=RandomSampler(data, replacement=True, num_samples=100_000),
        pin_memory=training.cuda,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    net, optimizer, loader = accelerator.prepare(net, adamw(training, net), loader)
    while not training.over:
        for inputs, labels in loader:
            loss = F.cross_entropy(net(inputs.float().sub(128).div(32)), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            training.made()
            if training.over:
                break


def lightning(training: Training) -> None:
    """A classifier in Lightning's Trainer."""
    import pytorch_lightning as pl

    class Classifier(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = residual_net(training)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            images, kinds = batch
            return F.cross_entropy(self.net(images), kinds)

        def on_train_batch_end(self, *arguments: Any) -> None:
            training.made()
            self.trainer.should_stop = training.over

        def configure_optimizers(self) -> Any:
            return adamw(training, self)

    images, kinds = pictures(training)
    parts = [(images, kinds)] * 64
    loader = DataLoader(parts, batch_size=None)
    trainer = pl.Trainer(
        accelerator="gpu" if training.cuda else "cpu",
        devices=1,
        max_epochs=-1,
        precision="bf16-mixed" if training.cuda else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main(named(hf_trainer, accelerated, lightning))
