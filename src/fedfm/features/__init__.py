"""The quality of feature spaces.

A metric of feature spaces is a number in `feature_space.measure`, a name in `FEATURE_METRICS`
(grid/jobs.py) and a heading in `MEASURES` (report/tables/statistics.py).
"""
