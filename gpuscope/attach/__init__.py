"""Attaching: putting the probe into a trainer, and the agent onto a host."""
