"""Healthy: a language model on texts of very different length.

Cries wolf: memory and time of a step go up and down by ten, and the peak rises whenever a longer
text comes.

Runs: steps=40
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=10**9)
parser.add_argument("--seconds", type=float, default=60.0)
args = parser.parse_args()
torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
width, longest, batch = (512, 2048, 16) if device.type == "cuda" else (64, 128, 4)
layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
model = nn.ModuleDict(
    {
        "tokens": nn.Embedding(1000, width),
        "encoder": nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
        "head": nn.Linear(width, 1000),
    }
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
ended, step = time.monotonic() + args.seconds, 0
while step < args.steps and time.monotonic() < ended:
    length = int(longest * 10 ** -torch.rand(()).item())
    text = (torch.randint(1000, (batch, 1)) + torch.arange(length + 1)).remainder(1000).to(device)
    hidden = model["encoder"](model["tokens"](text[:, :-1]))
    loss = F.cross_entropy(model["head"](hidden).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    step += 1
    if step % 20 == 0:
        print(f"step {step}  length {length}  loss {loss.item():.4f}", flush=True)
