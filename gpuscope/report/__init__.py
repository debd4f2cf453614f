"""Reports: one HTML file of a recording, a snapshot or a result, which loads nothing."""
