"""The tracing child: torch with fake tensors, in a process of its own that may abort without harm.

Only this package of predict imports torch; it is started by name and answers on a pipe.
"""
