"""Hold a file or a folder for each verb of the command line.

Each module has ``add_arguments(parser)``, and ``run(args)`` that returns the exit code.
The help says what a verb's codes mean: ``gpuscope/cli/verb_help.py`` has all of them.
"""
