"""FSDP2 on gloo under torchrun: two ranks, each with its shards; rank 0 shows a bar."""

import ranks
import torch
import torch.distributed as dist
import truth
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = truth.network()
mesh = dist.init_device_mesh("cpu", (2,)) if hasattr(dist, "init_device_mesh") else None
fully_shard(model, **({"mesh": mesh} if mesh is not None else {}))
ranks.train(model, model)
dist.destroy_process_group()
