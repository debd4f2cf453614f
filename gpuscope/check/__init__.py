"""Check trainings against their budgets, before any GPU is used."""
