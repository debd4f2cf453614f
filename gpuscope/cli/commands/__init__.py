"""Hold a file or a folder for each verb of the command line.

Each has ``add_arguments(parser)`` and ``run(args) -> exit code``.
"""
