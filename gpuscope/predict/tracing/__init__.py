"""Trace trainings with fake tensors, in a child process that may abort without harm.

Only this package of predict imports torch; it is started by name and answers on a pipe.
"""
