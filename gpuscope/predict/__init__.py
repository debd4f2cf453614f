"""Predict peak memory before the first step.

A step is traced with tensors that hold nothing, and the trace is replayed through a simulation of
torch's caching allocator.
"""
