"""Many hosts at once: a viewer that measures itself, and hosts behind one SSH server."""
