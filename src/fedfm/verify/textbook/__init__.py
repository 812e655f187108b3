"""Textbook loops of the methods, which use nothing of the library but are compared with it."""
