"""Series of runs, each run in a fresh process and each a submission: sweep, repeat, frontier, A/B."""
