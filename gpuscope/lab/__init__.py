"""The lab: a demo trainer that really trains, with switches. Only what ``worker`` starts imports torch."""
