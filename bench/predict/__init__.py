"""Measure how accurate `gpuscope predict` is.

This package has model families, real trainings of them, scores, and the fits that are based on
them.
"""
