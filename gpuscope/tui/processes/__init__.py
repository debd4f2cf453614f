"""The screens of a host's processes and of one of them."""
