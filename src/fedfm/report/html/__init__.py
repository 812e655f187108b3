"""The report: one self-contained HTML file about any number of runs."""

from fedfm.report.html.page import write_report

__all__ = ["write_report"]
