"""A frozen teacher and an EMA copy beside the student that is trained."""

import copy

import torch
import truth
from tqdm import tqdm

total = truth.steps(0.9)
student, teacher = truth.network(), truth.network(512)
teacher.requires_grad_(False).eval()
average = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters())
truth.begin(total=total)
bar = tqdm(truth.loader(total))
for step, (x, _) in enumerate(bar, 1):
    with torch.no_grad():
        wanted = teacher(x).softmax(-1)
    loss = truth.poisoned(torch.nn.functional.cross_entropy(student(x), wanted), step / total)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for mine, theirs in zip(average.parameters(), student.parameters(), strict=True):
            mine.lerp_(theirs, 0.01)
    bar.set_postfix_str(f"loss={loss.item():.6g}")
    truth.note(step=step, done=step, loss=loss.item())
    if step == 30:
        truth.count_bytes(student, optimizer, others=(teacher, average))
