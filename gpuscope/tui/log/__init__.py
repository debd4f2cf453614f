"""The Log tab: events from the source and notices of the program itself."""
