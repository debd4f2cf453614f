"""A plain loop with a tqdm bar over its epochs and one over each epoch's batches.

There is a validation after each.
"""

import torch
import truth
from tqdm import tqdm

EPOCHS = 3
batches = truth.steps() // EPOCHS
model = truth.network()
optimizer = torch.optim.AdamW(model.parameters())
loader, held_out = truth.loader(batches), truth.loader(20)
truth.begin()
step = 0
for epoch in tqdm(range(EPOCHS), desc="Epochs"):
    truth.note(phase="train", done=epoch, total=EPOCHS)
    bar = tqdm(loader, desc=f"epoch {epoch}", leave=False)
    for x, y in bar:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss = truth.poisoned(loss, step / (EPOCHS * batches))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        shown = loss.item()
        bar.set_postfix_str(f"loss={shown:.6g}")
        truth.note(step=step, loss=shown)
        if step == 30:
            truth.count_bytes(model, optimizer)
    model.eval()
    truth.note(phase="eval")
    with torch.no_grad():
        for x, _ in tqdm(held_out, desc="valid", leave=False):
            model(x)
    model.train()
truth.note(done=EPOCHS)
