"""LBFGS, whose step gets a closure and evaluates it several times."""

import torch
import truth
from tqdm import tqdm

total = truth.steps(0.2)
model = truth.network()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
loader = truth.loader(total)
truth.begin(4, total=total, unpoisoned=True, no_input=True)
bar = tqdm(loader)
for step, (x, y) in enumerate(bar, 1):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    bar.set_postfix_str(f"loss={loss.item():.6g}")
    truth.note(step=step, done=step, loss=loss.item())
