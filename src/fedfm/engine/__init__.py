"""Ways to train and measure a cohort of clients; they differ in speed, never in results."""
