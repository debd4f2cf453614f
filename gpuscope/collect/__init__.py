"""Collect one host's readings: devices by NVML, processes by /proc, trainers by their probes."""
