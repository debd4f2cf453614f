"""The Overview tab: jobs, devices, load and memory at a glance, and one Enter deeper."""
