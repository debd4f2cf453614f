"""Shows device memory, findings and the cost of a cell in a notebook."""
