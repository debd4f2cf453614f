"""The screen of one GPU, and its state in words."""
