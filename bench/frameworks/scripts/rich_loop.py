"""A plain loop whose progress is shown by Rich, the loss as a field of its task."""

import torch
import truth
from rich.progress import Progress

total = truth.steps()
model = truth.network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
batches = iter(truth.loader(total))
truth.begin(total=total)
with Progress() as progress:
    task = progress.add_task("training", total=total, loss=0.0)
    for step, (x, y) in enumerate(batches, 1):
        loss = truth.poisoned(torch.nn.functional.cross_entropy(model(x), y), step / total)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.update(task, advance=1, loss=loss.item())
        truth.note(step=step, done=step, loss=loss.item())
        if step == 30:
            truth.count_bytes(model, optimizer)
