"""The tab that shows where the wall clock of a training goes."""
