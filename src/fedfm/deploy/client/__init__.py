"""A client's side: its own data, its answers, and what it keeps and hides."""
