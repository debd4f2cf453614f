"""The application around the tabs: its start, its session, keys, actions and the palette."""
