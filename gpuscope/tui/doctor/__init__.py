"""The Doctor tab: what is wrong, since when, and how it is proved."""
