"""The Memory tab: where every byte of a device is, snapshots of the allocator, and what would make it less."""
