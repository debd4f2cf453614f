"""Instruments that measure gpuscope.

Nothing here is a test of what it does, and none of it is in the wheel.
"""
