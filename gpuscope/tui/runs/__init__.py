"""The runs of the Lab behind its screens: switches, devices, repeats, searches, the ledger."""
