"""Many hosts behind one SSH server, watched by one viewer."""
