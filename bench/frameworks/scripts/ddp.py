"""DistributedDataParallel on gloo under torchrun: two ranks, of which the second is slower."""

import ranks
import torch
import torch.distributed as dist
import truth

dist.init_process_group("gloo")
model = truth.network()
ranks.train(torch.nn.parallel.DistributedDataParallel(model), model, waits=0.03)
dist.destroy_process_group()
