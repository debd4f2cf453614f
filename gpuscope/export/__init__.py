"""Beyond a terminal: what the store holds as Prometheus metrics, served on a port or written to a file."""
