"""Exports what the store holds as Prometheus metrics, on a port or to a file."""
