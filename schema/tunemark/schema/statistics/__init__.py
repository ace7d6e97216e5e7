"""Steady state, intervals, comparisons and predictions from step times."""
