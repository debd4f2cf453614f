"""Judgements about a host, its devices, processes and trainers: pure functions over ``store.view``."""
