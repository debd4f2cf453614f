"""What every screen is given: the session, what is looked at, notices, and the tables of keys."""
