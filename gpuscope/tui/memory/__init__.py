"""The Memory tab says where every byte of a device is, and what would need fewer."""
