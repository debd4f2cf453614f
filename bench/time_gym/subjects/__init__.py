"""The trainings of the gym, each a function that trains with its fault, or cured."""
