"""Judge a host, its devices, processes and trainers.

These are pure functions over ``store.view``.
"""
