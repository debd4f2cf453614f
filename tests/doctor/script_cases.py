"""Small training scripts, each with one mistake and without it.

There is one pair a line, so that the two compare.
"""

# ruff: noqa: E501

from __future__ import annotations

import textwrap

HEAD = """\
import os
import time
import torch
from torch import nn, optim
import torch.nn.functional as F
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torch.nn.parallel import DistributedDataParallel as DDP

device = torch.device("cuda")
criterion = nn.CrossEntropyLoss()
"""
MODEL = """\
model = nn.Linear(7, 3).to(device)
optimizer = optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """\
    optimizer.zero_grad()
    loss = criterion(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
"""
LOOP = "for x, y in batches:\n" + STEP
WRAP = """\
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
model = DDP(model, device_ids=[0])
"""

LONG = """\
batches = DataLoader(
    Pictures(folder, transform=transforms.Compose([transforms.RandomCrop(224), transforms.ToTensor()])),
    batch_size=arguments.batch_size * arguments.accumulation_steps, shuffle=True,
    num_workers=2,  # how many is for the machine to say
)
"""

# cause, the mistake, the same without it
CASES = {
    "loss-kept, sum": (
        "loss-kept",
        MODEL + "total = 0\n" + LOOP + "    total += loss\n",
        MODEL + "total = 0\n" + LOOP + "    total += loss.item()\n",
    ),
    "loss-kept, weighted": (
        "loss-kept",
        MODEL + "total = 0.0\n" + LOOP + "    total = total + loss * len(x)\n",
        MODEL + "total = 0.0\n" + LOOP + "    total = total + loss.detach() * len(x)\n",
    ),
    "loss-kept, short name": (
        "loss-kept",
        MODEL
        + "total = 0\nfor x, l in batches:\n    l = criterion(model(x), x)\n    l.backward()\n"
        "    optimizer.step()\n    total += len(x) * l\n",
        MODEL,
    ),
    "loss-kept, list": (
        "loss-kept",
        MODEL + "kept = []\n" + LOOP + "    kept.append(loss)\n",
        MODEL + "kept = []\n" + LOOP + "    kept.append(float(loss))\n",
    ),
    "loss-kept, of one step": (
        "loss-kept",
        MODEL + "total = 0\n" + LOOP + "    total += loss\n",
        MODEL + LOOP + "    total = 0\n    for part in parts:\n        total += loss\n",
    ),
    "loss-kept, number": (
        "loss-kept",
        MODEL + "total = 0\n" + LOOP + "    total += loss\n",
        MODEL + "total = 0\n" + LOOP + "    loss = loss.item()\n    total += loss\n",
    ),
    "loss-kept, sum that goes backward": (
        "loss-kept",
        MODEL + "total = 0\n" + LOOP + "    total += loss\n",
        MODEL
        + "total = 0\nfor x, y in batches:\n    loss = criterion(model(x), y)\n    total += loss\n"
        "total.backward()\noptimizer.step()\n",
    ),
    "eval-with-grad": (
        "eval-with-grad",
        "def validate(model, batches):\n    model.eval()\n    for x, y in batches:\n"
        "        out = model(x)\n",
        "def validate(model, batches):\n    model.eval()\n    with torch.inference_mode():\n"
        "        for x, y in batches:\n            out = model(x)\n",
    ),
    "eval-with-grad, decorator": (
        "eval-with-grad",
        "def test(net):\n    net.eval()\n    for x in batches:\n        net(x)\n",
        "@torch.no_grad()\ndef test(net):\n    net.eval()\n    for x in batches:\n        net(x)\n",
    ),
    "eval-with-grad, caller": (
        "eval-with-grad",
        "def test(net):\n    net.eval()\n    for x in batches:\n        net(x)\ntest(model)\n",
        "def test(net):\n    net.eval()\n    for x in batches:\n        net(x)\n"
        "with torch.no_grad():\n    test(model)\n",
    ),
    "eval-with-grad, method that others call": (
        "eval-with-grad",
        "class Job:\n    def run(self):\n        self.net.eval()\n        for x in batches:\n"
        "            self.net(x)\n    def main(self):\n        self.run()\n",
        "class Job:\n    def run(self):\n        self.net.eval()\n        for x in batches:\n"
        "            self.net(x)\n",
    ),
    "eval-with-grad, attack": (
        "eval-with-grad",
        "def test(net):\n    net.eval()\n    for x in batches:\n        net(x)\n",
        "def test(net):\n    net.eval()\n    for x in batches:\n        x.requires_grad = True\n"
        "        net(x).sum().backward()\n",
    ),
    "outputs-kept": (
        "outputs-kept",
        MODEL + "kept = []\nfor x in batches:\n    out = model(x)\n    kept.append(out)\n"
        "    torch.cuda.empty_cache()\n",
        MODEL + "kept = []\nfor x in batches:\n    out = model(x)\n    kept.append(out.cpu())\n"
        "    torch.cuda.empty_cache()\n",
    ),
    "empty-cache-each-step": (
        "empty-cache-each-step",
        MODEL + LOOP + "    torch.cuda.empty_cache()\n",
        MODEL + LOOP + "torch.cuda.empty_cache()\n",
    ),
    "load-without-map-location": (
        "load-without-map-location",
        MODEL + "model.load_state_dict(torch.load('a.pt'))\n",
        MODEL + "model.load_state_dict(torch.load('a.pt', map_location='cpu'))\n",
    ),
    "plain-list-of-modules": (
        "plain-list-of-modules",
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.parts = [nn.Linear(4, 4) for _ in range(3)]\n    def forward(self, x):\n"
        "        for part in self.parts:\n            x = part(x)\n        return x\n",
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        parts = [nn.Linear(4, 4) for _ in range(3)]\n"
        "        self.parts = nn.ModuleList(parts)\n    def forward(self, x):\n"
        "        for part in self.parts:\n            x = part(x)\n        return x\n",
    ),
    "plain-list-of-modules, registered": (
        "plain-list-of-modules",
        "class Net(nn.Module):\n    def __init__(self):\n        self.parts = []\n"
        "        for _ in range(3):\n            self.parts.append(nn.Linear(4, 4))\n"
        "    def forward(self, x):\n        return self.parts[0](x)\n",
        "class Net(nn.Module):\n    def __init__(self):\n        self.parts = []\n"
        "        for _ in range(3):\n            self.parts.append(nn.Linear(4, 4))\n"
        "        self.all = nn.Sequential(*self.parts)\n    def forward(self, x):\n"
        "        return self.parts[0](x)\n",
    ),
    "plain-list-of-modules, without weights": (
        "plain-list-of-modules",
        "class Net(nn.Module):\n    def __init__(self):\n"
        "        self.parts = [nn.Conv2d(1, 2, 3)]\n    def forward(self, x):\n"
        "        return self.parts[0](x)\n",
        "class Net(nn.Module):\n    def __init__(self):\n        self.parts = [nn.ReLU()]\n"
        "    def forward(self, x):\n        return self.parts[0](x)\n",
    ),
    "autocast-around-dataparallel": (
        "autocast-around-dataparallel",
        MODEL + "model = nn.DataParallel(model)\nfor x, y in batches:\n"
        "    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "        loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
        MODEL + "model = nn.parallel.DistributedDataParallel(model)\nfor x, y in batches:\n"
        "    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "        loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
    ),
    "autocast-around-dataparallel, where there are two": (
        "autocast-around-dataparallel",
        MODEL + "if torch.cuda.device_count() > 1:\n    model = nn.DataParallel(model)\n"
        "model = model.to(device)\nfor x, y in batches:\n"
        "    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "        loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
        MODEL + "model = nn.DataParallel(model)\nfor x, y in batches:\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
    ),
    "autocast-around-dataparallel, inside too": (
        "autocast-around-dataparallel",
        "class Net(nn.Module):\n    def forward(self, x):\n        return x\n"
        "model = nn.DataParallel(Net())\noptimizer = optim.SGD(model.parameters(), lr=0.1)\n"
        "for x, y in batches:\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "        loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
        "class Net(nn.Module):\n    def forward(self, x):\n"
        "        with torch.autocast('cuda', dtype=torch.bfloat16):\n            return x\n"
        "model = nn.DataParallel(Net())\noptimizer = optim.SGD(model.parameters(), lr=0.1)\n"
        "for x, y in batches:\n    with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "        loss = criterion(model(x), y)\n    loss.backward()\n    optimizer.step()\n"
        "    optimizer.zero_grad()\n",
    ),
    "state-of-wrapped-model": (
        "state-of-wrapped-model",
        MODEL + "wrapped = nn.DataParallel(model)\nfresh = nn.Linear(7, 3)\n"
        "fresh.load_state_dict(wrapped.state_dict())\n",
        MODEL + "wrapped = nn.DataParallel(model)\nfresh = nn.DataParallel(nn.Linear(7, 3))\n"
        "fresh.load_state_dict(wrapped.state_dict())\n",
    ),
    "old-amp": (
        "old-amp",
        "from torch.cuda.amp import autocast\nwith autocast():\n    pass\n",
        "try:\n    from torch.amp import autocast\nexcept ImportError:\n"
        "    from torch.cuda.amp import autocast\nwith autocast('cuda'):\n    pass\n",
    ),
    "clip-before-unscale": (
        "clip-before-unscale",
        MODEL + "scaler = torch.amp.GradScaler('cuda')\nscaler.scale(loss).backward()\n"
        "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\nscaler.step(optimizer)\n"
        "scaler.update()\n",
        MODEL + "scaler = torch.amp.GradScaler('cuda')\nscaler.scale(loss).backward()\n"
        "scaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "scaler.step(optimizer)\nscaler.update()\n",
    ),
    "clip-before-unscale, other branch": (
        "clip-before-unscale",
        MODEL + "if amp:\n    scaler.scale(loss).backward()\n    nn.utils.clip_grad_norm_(w, 1.0)\n"
        "    scaler.step(optimizer)\n",
        MODEL + "if amp:\n    scaler.scale(loss).backward()\n    scaler.step(optimizer)\nelse:\n"
        "    loss.backward()\n    nn.utils.clip_grad_norm_(w, 1.0)\n    optimizer.step()\n",
    ),
    "old-amp, by version": (
        "old-amp",
        "scaler = torch.cuda.amp.GradScaler()\n",
        "if VERSION >= (2, 3):\n    scaler = torch.amp.GradScaler('cuda')\nelse:\n"
        "    scaler = torch.cuda.amp.GradScaler()\n",
    ),
    "old-amp, by a flag": (
        "old-amp",
        "scaler = torch.cuda.amp.GradScaler()\n",
        "scaler = torch.amp.GradScaler('cuda') if NEW else torch.cuda.amp.GradScaler()\n",
    ),
    "first-gpu-in-every-rank, one GPU": (
        "first-gpu-in-every-rank",
        "dist.init_process_group('nccl')\nmodel = DDP(model, device_ids=[rank])\nx = x.cuda()\n",
        "if ranks:\n    dist.init_process_group('nccl')\n"
        "    model = DDP(model, device_ids=[rank])\nelse:\n    x = x.cuda()\n",
    ),
    "load-without-map-location, ranks": (
        "load-without-map-location",
        MODEL + WRAP + "model.module.load_state_dict(torch.load('a.pt'))\n",
        MODEL + WRAP + "model.module.load_state_dict(torch.load('a.pt', map_location='cpu'))\n",
    ),
    "load-without-map-location, scaler": (
        "load-without-map-location",
        MODEL + "state = torch.load('a.pt')\noptimizer.load_state_dict(state['optimizer'])\n",
        MODEL + "state = torch.load('a.pt')\nscaler.load_state_dict(state['scaler'])\n",
    ),
    "optimizer-steps-scaled": (
        "optimizer-steps-scaled",
        MODEL + "scaler = torch.amp.GradScaler('cuda')\nscaler.scale(loss).backward()\n"
        "optimizer.step()\nscaler.update()\n",
        MODEL + "scaler = torch.amp.GradScaler('cuda')\nscaler.scale(loss).backward()\n"
        "scaler.step(optimizer)\nscaler.update()\n",
    ),
    "scaler-not-updated": (
        "scaler-not-updated",
        MODEL + "scaler = torch.amp.GradScaler('cuda')\nscaler.scale(loss).backward()\n"
        "scaler.step(optimizer)\n",
        MODEL + "scaler = torch.amp.GradScaler('cuda')\nscaler.scale(loss).backward()\n"
        "scaler.step(optimizer)\nscaler.update()\n",
    ),
    "fp16-without-scaler": (
        "fp16-without-scaler",
        MODEL + "with torch.autocast('cuda'):\n    loss = model(x).sum()\nloss.backward()\n",
        MODEL + "with torch.autocast('cuda', dtype=torch.bfloat16):\n    loss = model(x).sum()\n"
        "loss.backward()\n",
    ),
    "backward-in-autocast": (
        "backward-in-autocast",
        MODEL + "with torch.autocast('cuda', dtype=torch.bfloat16):\n    loss = model(x).sum()\n"
        "    loss.backward()\n",
        MODEL + "with torch.autocast('cuda', dtype=torch.bfloat16):\n    loss = model(x).sum()\n"
        "loss.backward()\n",
    ),
    "loss-not-divided": (
        "loss-not-divided",
        MODEL + "for i, (x, y) in enumerate(batches):\n    loss = criterion(model(x.to(device)), "
        "y.to(device))\n    loss.backward()\n    if (i + 1) % 4 == 0:\n"
        "        optimizer.step()\n        optimizer.zero_grad()\n",
        MODEL + "for i, (x, y) in enumerate(batches):\n    loss = criterion(model(x.to(device)), "
        "y.to(device)) / 4\n    loss.backward()\n    if (i + 1) % 4 == 0:\n"
        "        optimizer.step()\n        optimizer.zero_grad()\n",
    ),
    "zeroed-each-micro-batch": (
        "zeroed-each-micro-batch",
        MODEL + "for i, (x, y) in enumerate(batches):\n    optimizer.zero_grad()\n"
        "    loss = criterion(model(x.to(device)), y.to(device)) / 4\n    loss.backward()\n"
        "    if (i + 1) % 4 == 0:\n        optimizer.step()\n",
        MODEL + "for i, (x, y) in enumerate(batches):\n    loss = criterion(model(x.to(device)), "
        "y.to(device)) / 4\n    loss.backward()\n    if (i + 1) % 4 == 0:\n"
        "        optimizer.step()\n        optimizer.zero_grad()\n",
    ),
    "never-zeroed": (
        "never-zeroed",
        MODEL + LOOP.replace("    optimizer.zero_grad()\n", ""),
        MODEL + LOOP,
    ),
    "zeroed-before-step": (
        "zeroed-before-step",
        MODEL + "for x in batches:\n    loss = model(x).sum()\n    loss.backward()\n"
        "    optimizer.zero_grad()\n    optimizer.step()\n",
        MODEL + "for x in batches:\n    loss = model(x).sum()\n    loss.backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n",
    ),
    "zeroed-before-step, two losses": (
        "zeroed-before-step",
        MODEL + "for x in batches:\n    loss.backward()\n    optimizer.zero_grad()\n"
        "    optimizer.step()\n",
        MODEL + "for x in batches:\n    first.backward()\n    optimizer.zero_grad()\n"
        "    second.backward()\n    optimizer.step()\n",
    ),
    "dataparallel": (
        "dataparallel",
        MODEL + "model = nn.DataParallel(model)\n" + LOOP,
        MODEL + LOOP,
    ),
    "no-process-group": (
        "no-process-group",
        MODEL + "model = DDP(model)\n" + LOOP + "if __name__ == '__main__':\n    pass\n",
        MODEL + WRAP + LOOP + "if __name__ == '__main__':\n    pass\n",
    ),
    "no-process-group, elsewhere": (
        "no-process-group",
        MODEL + "model = DDP(model)\n" + LOOP + "if __name__ == '__main__':\n    pass\n",
        "from helpers import setup_ranks\nsetup_ranks()\n"
        + MODEL
        + "model = DDP(model)\n"
        + LOOP
        + "if __name__ == '__main__':\n    pass\n",
    ),
    "gloo-between-gpus": (
        "gloo-between-gpus",
        MODEL + WRAP.replace("nccl", "gloo") + LOOP,
        MODEL + WRAP + LOOP,
    ),
    "first-gpu-in-every-rank": (
        "first-gpu-in-every-rank",
        WRAP.replace('torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\n', "")
        + LOOP.replace("y.to(device)", "y.cuda()"),
        WRAP + LOOP.replace("y.to(device)", "y.cuda()"),
    ),
    "no-distributed-sampler": (
        "no-distributed-sampler",
        MODEL + WRAP + "batches = DataLoader(data, shuffle=True)\n" + LOOP,
        MODEL
        + WRAP
        + "batches = DataLoader(data, sampler=DistributedSampler(data))\nfor epoch in range(3):\n"
        "  batches.sampler.set_epoch(epoch)\n" + textwrap.indent(LOOP, "  "),
    ),
    "no-set-epoch": (
        "no-set-epoch",
        MODEL
        + WRAP
        + "sampler = DistributedSampler(data)\nfor epoch in range(3):\n"
        + textwrap.indent(LOOP, "  "),
        MODEL
        + WRAP
        + "sampler = DistributedSampler(data)\nfor epoch in range(3):\n  sampler.set_epoch(epoch)\n"
        + textwrap.indent(LOOP, "  "),
    ),
    "no-set-epoch, not shuffled": (
        "no-set-epoch",
        MODEL
        + "sampler = DistributedSampler(data)\nfor epoch in range(3):\n"
        + textwrap.indent(LOOP, "  "),
        MODEL
        + "sampler = DistributedSampler(data, shuffle=False)\nfor epoch in range(3):\n"
        + textwrap.indent(LOOP, "  "),
    ),
    "attribute-of-wrapped-model": (
        "attribute-of-wrapped-model",
        MODEL + "model = DDP(model)\nmodel.generate()\n",
        MODEL + "model = DDP(model)\nmodel.module.generate()\nmodel.parameters()\n",
    ),
    "attribute-of-wrapped-model, unwrapped": (
        "attribute-of-wrapped-model",
        MODEL + "model = nn.DataParallel(model)\nmodel.generate()\n",
        MODEL + "model = nn.DataParallel(model)\nmodel = model.module\nmodel.generate()\n",
    ),
    "labels-not-moved": (
        "labels-not-moved",
        MODEL + LOOP.replace("y.to(device)", "y"),
        MODEL + LOOP,
    ),
    "labels-not-moved, by another": (
        "labels-not-moved",
        MODEL + LOOP.replace("y.to(device)", "y"),
        MODEL + "for x, y in batches:\n    y = put(y)\n" + STEP.replace("y.to(device)", "y"),
    ),
    "move-without-effect": (
        "move-without-effect",
        "x = torch.randn(3)\nx.to(device)\n",
        "x = torch.randn(3)\nx = x.to(device)\nmodel.to(device)\n",
    ),
    "model-not-moved": (
        "model-not-moved",
        MODEL.replace(".to(device)", "")
        + "for x, y in batches:\n    x, y = x.to(device), y.to(device)\n"
        "    optimizer.zero_grad()\n    loss = criterion(model(x), y)\n    loss.backward()\n"
        "    optimizer.step()\n",
        MODEL.replace(".to(device)", "")
        + "model.cuda()\nfor x, y in batches:\n    x, y = x.to(device), y.to(device)\n"
        "    optimizer.zero_grad()\n    loss = criterion(model(x), y)\n    loss.backward()\n"
        "    optimizer.step()\n",
    ),
    "made-on-cpu": (
        "made-on-cpu",
        "class Net(nn.Module):\n    def __init__(self):\n"
        "        self.places = nn.Embedding(9, 4)\n    def forward(self, x):\n"
        "        at = torch.arange(x.shape[1])\n        return x + self.places(at)\n",
        "class Net(nn.Module):\n    def __init__(self):\n"
        "        self.places = nn.Embedding(9, 4)\n    def forward(self, x):\n"
        "        at = torch.arange(x.shape[1], device=x.device)\n"
        "        return x + self.places(at)\n",
    ),
    "no-loader-workers": (
        "no-loader-workers",
        MODEL + "batches = DataLoader(data, shuffle=True)\n" + LOOP,
        MODEL + "batches = DataLoader(data, shuffle=True, num_workers=2, pin_memory=True)\n" + LOOP,
    ),
    "memory-not-pinned": (
        "memory-not-pinned",
        MODEL + "batches = DataLoader(data, shuffle=True, num_workers=2)\n" + LOOP,
        MODEL + "batches = DataLoader(data, shuffle=True, num_workers=2, pin_memory=True)\n" + LOOP,
    ),
    "waits-each-step": (
        "waits-each-step",
        MODEL + LOOP + "    print(loss.item())\n",
        MODEL + LOOP + "    if len(x) < 3:\n        print(loss.item())\n",
    ),
    "waits-each-step, on purpose": (
        "waits-each-step",
        MODEL + LOOP + "    seen += float(loss)\n",
        MODEL + LOOP + "    torch.cuda.synchronize()\n    seen += float(loss)\n",
    ),
    "waits-each-step, detached": (
        "waits-each-step",
        MODEL + LOOP + "    seen += loss.detach().item()\n",
        MODEL + LOOP + "    seen += loss.detach()\n",
    ),
    "waits-each-step, shown by accelerate": (
        "waits-each-step",
        "import accelerate\n"
        + MODEL
        + LOOP
        + "    logs = {'loss': loss.item()}\n    kept.append(logs)\n",
        "import accelerate\n"
        + MODEL
        + LOOP
        + "    logs = {'loss': loss.item()}\n    bar.set_postfix(**logs)\n"
        "    run.log(logs, step=3)\n",
    ),
    "waits-each-step, benchmark": (
        "waits-each-step",
        MODEL + LOOP + "    loss.item()\n",
        MODEL
        + "def bench_one_epoch():\n"
        + textwrap.indent(LOOP, "    ")
        + "        loss.item()\n",
    ),
    "clock-without-synchronize": (
        "clock-without-synchronize",
        MODEL + "begun = time.time()\nout = model(x)\ntook = time.time() - begun\n",
        MODEL + "begun = time.time()\nout = model(x)\ntorch.cuda.synchronize()\n"
        "took = time.time() - begun\n",
    ),
    "clock-without-synchronize, item": (
        "clock-without-synchronize",
        MODEL + "begun = time.time()\nout = model(x)\ntook = time.time() - begun\n",
        MODEL + "begun = time.time()\nout = model(x).sum().item()\ntook = time.time() - begun\n",
    ),
    "first-compiled-call-timed": (
        "first-compiled-call-timed",
        MODEL
        + "def lap(net):\n    begun = time.time()\n    net(x)\n    return time.time() - begun\n"
        "fast = torch.compile(model)\nprint(lap(fast))\n",
        MODEL
        + "def lap(net):\n    begun = time.time()\n    net(x)\n    return time.time() - begun\n"
        "fast = torch.compile(model)\nfast(x)\nprint(lap(fast))\n",
    ),
    "benchmark-and-deterministic": (
        "benchmark-and-deterministic",
        "torch.backends.cudnn.deterministic = True\ntorch.backends.cudnn.benchmark = True\n",
        "if fast:\n    torch.backends.cudnn.benchmark = True\nelse:\n"
        "    torch.backends.cudnn.deterministic = True\n",
    ),
    "benchmark-with-seed": (
        "benchmark-with-seed",
        "torch.manual_seed(3)\ntorch.backends.cudnn.benchmark = True\n",
        "torch.manual_seed(3)\n",
    ),
    "loss-kept, in a name with loss": (
        "loss-kept",
        MODEL + "total_loss = 0\n" + LOOP + "    total_loss += loss\n",
        MODEL + "total_loss = 0\n" + LOOP + "    total_loss += loss.item()\n",
    ),
    "memory-not-pinned, in many lines": (
        "memory-not-pinned",
        MODEL + LONG + LOOP,
        MODEL + LONG.replace("num_workers=2,", "num_workers=2, pin_memory=True,") + LOOP,
    ),
    "memory-not-pinned, accelerate": (
        "memory-not-pinned",
        MODEL + "batches = DataLoader(data, shuffle=True, num_workers=2)\n" + LOOP,
        "import accelerate\n"
        + MODEL
        + "batches = DataLoader(data, shuffle=True, num_workers=2)\n"
        + LOOP,
    ),
    "no-loader-workers, numbers": (
        "no-loader-workers",
        MODEL + "batches = DataLoader(pictures, shuffle=True)\n" + LOOP,
        MODEL + "some = DataLoader(range(9), shuffle=True)\nedges = split['idx'].to(device)\n"
        "more = DataLoader(train_idx, shuffle=True)\n"
        "rest = DataLoader(mask.nonzero().view(-1), shuffle=True)\n"
        "rows = DataLoader(torch.utils.data.TensorDataset(x, y), shuffle=True)\n" + LOOP,
    ),
    "benchmark-with-seed, of a split": (
        "benchmark-with-seed",
        "def main():\n    torch.manual_seed(3)\n    torch.backends.cudnn.benchmark = True\n",
        "def split(data):\n    torch.manual_seed(3)\n    return torch.randperm(9)\ndef main():\n"
        "    torch.backends.cudnn.benchmark = True\n",
    ),
    "odd-last-batch": (
        "odd-last-batch",
        "net = nn.DataParallel(nn.BatchNorm1d(4))\n"
        + MODEL
        + "batches = DataLoader(data, shuffle=True)\n"
        + LOOP,
        "net = nn.DataParallel(nn.BatchNorm1d(4))\n"
        + MODEL
        + "batches = DataLoader(data, shuffle=True, drop_last=True)\n"
        + LOOP,
    ),
}
