"""These screens look at one trainer and ask it: attaching, its ranks, stacks and profiles."""
