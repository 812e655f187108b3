"""Measures of trained models, beside accuracy."""
