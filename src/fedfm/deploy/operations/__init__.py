"""What an operator sees of a running server: audit log, status, metrics, live page, keys."""
