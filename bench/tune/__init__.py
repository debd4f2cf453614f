"""Measure what ``gpuscope tune`` promises: beside an exhaustive grid and beside another tuner."""
