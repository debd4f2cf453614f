"""gpuscope: see inside a PyTorch training from the terminal.

``import gpuscope`` imports nothing else: in a training environment ``pip install --no-deps PATH``,
of a clone or of the wheel that ``make wheel`` builds, is enough for :func:`watch`. A script that
calls it runs unchanged where nobody is looking.
"""

__version__ = "0.1.0"


def watch(model=None, optimizer=None):  # type: (object, object) -> None
    """Let gpuscope see this training.

    It takes one line, anywhere in the script, before or after ``import torch``.

    Opens a private socket (``/tmp/gpuscope-UID``, mode 0700) served by one sleeping thread, which
    writes the last ten minutes into a black box there, a sample a second (GPUSCOPE_BLACKBOX=0:
    none), and serves whoever looks. It reads only: no synchronisation, no module hooks, no peak
    reset, and it never raises.

    ``model`` and ``optimizer`` are optional, each one object or a list. With ``model`` frozen
    parameters are counted too; optimizers are found by themselves when they step. A second call
    adds to the first. GPUSCOPE=0 in the environment turns it into nothing.
    """
    try:
        from .probe import watch as start

        start(model, optimizer)
    except Exception as error:
        from .probe.on_import import debug

        debug("not watching", error)


def load_ipython_extension(shell):  # type: (object) -> None
    """Add the magics to a notebook or an IPython terminal: ``%load_ext gpuscope``."""
    from .notebook.extension import load

    load(shell)


def unload_ipython_extension(shell):  # type: (object) -> None
    """Take the magics out again: ``%unload_ext gpuscope``."""
    from .notebook.extension import unload

    unload(shell)
