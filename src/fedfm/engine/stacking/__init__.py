"""Layers that compute S networks at once."""
