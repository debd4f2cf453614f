"""One file a screen; each is built on its first visit and updated only while it is visible."""
