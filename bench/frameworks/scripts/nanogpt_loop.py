"""The loop of nanoGPT's script, at the level of the module.

It has a count of iterations, and a loss printed now and then.
"""

import time

import torch
import truth

max_iters, iter_num, log_interval = truth.steps(0.9), 0, 5
gradient_accumulation_steps = 2
max_iters //= gradient_accumulation_steps
model = truth.network()
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(8, 16), torch.randint(0, 2, (8,))
truth.begin(gradient_accumulation_steps, total=max_iters, no_input=True)
while iter_num < max_iters:
    for _ in range(gradient_accumulation_steps):
        time.sleep(truth.INPUT_SECONDS)
        loss = torch.nn.functional.cross_entropy(model(x), y) / gradient_accumulation_steps
        loss = truth.poisoned(loss, iter_num / max_iters)
        loss.backward()
    optimizer.step()
    if iter_num == 30:
        truth.count_bytes(model, optimizer)
    optimizer.zero_grad(set_to_none=True)
    truth.note(step=iter_num + 1)
    if iter_num % log_interval == 0:
        lossf = loss.item() * gradient_accumulation_steps
        print(f"iter {iter_num}: loss {lossf:.4f}")
        truth.note(loss=lossf)
    iter_num += 1
    truth.note(done=iter_num)
