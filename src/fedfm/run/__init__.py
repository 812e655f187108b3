"""Runs: prepared, simulated, recorded in a folder, followed on a console."""
