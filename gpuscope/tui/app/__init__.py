"""The program: its screen behind the tabs, its start, palette and help; it opens all others."""
