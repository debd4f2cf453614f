"""Find the fastest settings of a training that fit its device, and prove it."""
