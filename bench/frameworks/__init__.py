"""Trainings in frameworks that others wrote: ``make test-frameworks``.

What the probe says is compared with what each says of itself.
"""
