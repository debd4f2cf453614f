"""What the probe and the Lab cost a training step."""
