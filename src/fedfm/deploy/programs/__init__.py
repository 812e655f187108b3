"""Flower's programs as processes: started, guarded, connected, and ended."""
