"""Long random runs that look for harm: injections, kills, keys and sizes of terminals."""
