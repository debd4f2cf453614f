"""Programs with the probe in them, up to a moment that tests have to wait for."""

from __future__ import annotations

WATCHED = (
    "import glob, os, sys, time, gpuscope; gpuscope.watch()\n"
    "from gpuscope.wire import boxes\n"
    "def written():\n"
    "    for path in glob.glob(os.environ['GPUSCOPE_BLACKBOX_DIR'] + '/%d-*.box' % os.getpid()):\n"
    "        return any(open(path, 'rb').read()[boxes.SLOTS_OFFSET :][: boxes.SLOT_BYTES])\n"
    "while not written(): time.sleep(0.01)\n"
)
"""Goes on when its black box is there, and a sample in it."""
