"""What the viewer knows: sources of frames, the last state and its history, recordings and replay."""
