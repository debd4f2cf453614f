"""Hugging Face's Trainer with gradient accumulation.

There is an evaluation every so many steps, and a model built from a config.
"""

import tempfile
import time

import torch
import truth

truth.declare_vision_operators()
from transformers import (  # noqa: E402
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

ACCUMULATE = 2
total = truth.steps(0.9) // ACCUMULATE
model = truth.slow(
    GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=128, n_positions=32))
)


class Texts(torch.utils.data.Dataset):
    def __init__(self, size):
        self.ids = torch.randint(0, 128, (size, 16), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        time.sleep(truth.INPUT_SECONDS / 4)
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class Watch(TrainerCallback):
    def on_train_begin(self, args, state, control, **more):
        truth.begin(ACCUMULATE, total=state.max_steps)

    def on_step_end(self, args, state, control, **more):
        truth.note(step=state.global_step, done=state.global_step, phase="train")

    # before the gradients are set to None
    def on_optimizer_step(self, args, state, control, **more):
        if state.global_step == 30:
            truth.count_bytes(model, trainer.optimizer)

    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            truth.note(loss=float(logs["loss"]))

    def on_prediction_step(self, args, state, control, **more):
        truth.note(phase="eval")

    def on_evaluate(self, args, state, control, **more):
        truth.note(phase="train")


class Poisoned(Trainer):
    def compute_loss(self, model, inputs, *args, **more):
        found = super().compute_loss(model, inputs, *args, **more)
        done = self.state.global_step / self.state.max_steps
        return (
            (truth.poisoned(found[0], done), found[1])
            if isinstance(found, tuple)
            else truth.poisoned(found, done)
        )


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        max_steps=total,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=ACCUMULATE,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=total // 3,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        learning_rate=1e-3,
    )
    trainer = Poisoned(
        model, arguments, train_dataset=Texts(4096), eval_dataset=Texts(160), callbacks=[Watch()]
    )
    trainer.train()
