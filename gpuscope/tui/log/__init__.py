"""The Log tab: what the source told and what the program itself said."""
