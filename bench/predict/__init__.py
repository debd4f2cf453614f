"""Measure how right `gpuscope predict` is.

Here are model families, real trainings of them, scores, and what is fitted to them.
"""
