"""Pictures, and the report as one HTML file; tables are in experiments/."""
