"""Series of runs, each in a fresh process and each a submission: sweep, repeats, frontier, A/B."""
