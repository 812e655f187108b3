"""A client's side: its data, its answers, and what it keeps on its own disk."""
