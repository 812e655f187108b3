"""Measures of trained models besides accuracy."""
