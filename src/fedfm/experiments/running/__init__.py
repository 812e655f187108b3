"""Runs what is missing: the grid, its workers, and what it shows meanwhile."""
