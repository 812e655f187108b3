"""Metrics of trained models. Accuracy is counted in engine/forward.py (`count_correct`).

A metric of feature spaces is a number in `feature_space.measure`, a name in `FEATURE_METRICS`
(grid/jobs.py) and a heading in `MEASURES` (report/tables/statistics.py).
"""
