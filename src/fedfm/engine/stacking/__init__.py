"""Layers that hold S networks at once."""
