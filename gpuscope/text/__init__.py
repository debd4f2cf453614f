"""Writes amounts with units, text that fits into cells, and styled lines."""
