"""What is looked at and done in one trainer: attaching, its ranks, its stacks, profiles and requests."""
