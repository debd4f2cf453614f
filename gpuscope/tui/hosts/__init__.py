"""The Hosts tab and the sources of several hosts in one session."""
