"""The doctor: evidence in, findings out. It never imports torch, the screen or a driver library."""
