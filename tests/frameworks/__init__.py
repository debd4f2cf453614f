"""Trainings in frameworks that others wrote, compared with what each says of itself: ``make test-frameworks``."""
