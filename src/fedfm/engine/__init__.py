"""Executors that train and measure a cohort of clients; they differ only in speed."""
