"""Widgets that draw themselves line by line; none knows where its data comes from."""
