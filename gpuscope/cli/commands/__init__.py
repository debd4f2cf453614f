"""A file or a folder for each verb of the command line: ``add_arguments(parser)`` and ``run(args) -> exit code``."""
