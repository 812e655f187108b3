"""The report: one HTML file about any number of runs, which needs nothing else to be read."""

from fedfm.report.html.page import write_report

__all__ = ["write_report"]
