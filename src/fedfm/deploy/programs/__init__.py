"""Flower's programs as processes: commands, keys, addresses, logs and the proxy."""
