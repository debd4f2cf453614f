"""The loop of timm's training script.

It has a function that trains an epoch, an AverageMeter, and no progress bar.
"""

import torch
import truth

truth.declare_vision_operators()
from timm.optim import create_optimizer_v2  # noqa: E402
from timm.utils import AverageMeter  # noqa: E402

EPOCHS = 2
batches = truth.steps() // EPOCHS
model = truth.network()


def train_one_epoch(epoch, model, loader, optimizer, updates_per_epoch):
    losses_m = AverageMeter()
    model.train()
    for update_idx, (x, y) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        done = epoch * updates_per_epoch + update_idx + 1
        loss = truth.poisoned(loss, done / (EPOCHS * updates_per_epoch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses_m.update(loss.item(), len(x))
        truth.note(step=done, done=done, loss=losses_m.val)
        if done == 30:
            truth.count_bytes(model, optimizer)


def main():
    num_epochs = EPOCHS
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05)
    loader = truth.loader(batches)
    truth.begin(total=EPOCHS * batches)
    for epoch in range(num_epochs):
        train_one_epoch(epoch, model, loader, optimizer, len(loader))


main()
