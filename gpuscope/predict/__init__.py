"""Peak memory before the first step: a step is traced with tensors that hold nothing, and the trace is replayed through
a simulation of torch's caching allocator."""
