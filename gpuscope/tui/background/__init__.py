"""What goes on behind the screens: sources, the doctor, questions to probes, the journal."""
