"""One file for each verb of the command line: ``add_arguments(parser)`` and ``run(args) -> exit code``."""
