"""Trace trainings with fake tensors, in a child process that may abort without harm.

Only this package of predict imports torch. It is started as a module and answers on a pipe.
"""
