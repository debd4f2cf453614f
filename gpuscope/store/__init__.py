"""Keep what the viewer knows.

That is sources of frames, the last state and its history, recordings and replay.
"""
