"""The paper's tables and figures, and ours, as data: declared in small files, run by name, compared with the paper.

Nothing here trains: a run is a request to `l2dp.sweeps`, identified by its configuration. docs/experiments.md shows
how to add an experiment in one short file.
"""
