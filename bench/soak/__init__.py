"""Long runs at random that look for harm: injections, kills, keys and sizes of terminals."""
