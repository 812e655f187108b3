"""Tables and figures of results, and the report as one HTML file."""
