"""Grids of runs: recipes, the runner and its workers, the store of results."""
