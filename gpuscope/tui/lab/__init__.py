"""The Lab tab: the demo trainer's switches, its runs, and two of them compared."""
