"""One host's truth: devices by NVML, host and processes by /proc, trainers by their probes."""
