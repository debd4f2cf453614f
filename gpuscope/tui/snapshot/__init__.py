"""The screen of an allocator snapshot, and what the doctor finds in it."""
