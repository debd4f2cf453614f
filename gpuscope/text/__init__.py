"""How gpuscope writes things down: amounts with units, text that fits into cells, styled lines. Standard library."""
