"""A demo trainer that really trains, with switches. Only ``worker`` leads to torch."""
