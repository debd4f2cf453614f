"""A GAN in a plain loop: two optimizers a step, both losses in tqdm's postfix."""

import torch
import truth
from tqdm import tqdm

total = truth.steps(0.9)
make = truth.slow(
    torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
)
judge = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
first, second = torch.optim.Adam(judge.parameters()), torch.optim.Adam(make.parameters())
judged = torch.nn.functional.softplus
truth.begin(total=total, no_loss="two losses", unpoisoned=True)
for step, (x, _) in enumerate(tqdm(truth.loader(total)), 1):
    fake = make(torch.randn(len(x), 4))
    d_loss = judged(judge(fake.detach())).mean() + judged(-judge(x)).mean()
    first.zero_grad()
    d_loss.backward()
    first.step()
    g_loss = judged(-judge(fake)).mean()
    second.zero_grad()
    g_loss.backward()
    second.step()
    truth.note(step=step, done=step)
    if step == 30:
        both = torch.nn.ModuleList([make, judge])
        truth.count_bytes(both, first, second)
