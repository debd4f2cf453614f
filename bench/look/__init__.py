"""What a look costs, how true its rows are, and 200 of them in a row: on a real card."""
