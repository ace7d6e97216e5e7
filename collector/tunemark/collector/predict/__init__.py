"""Prediction of throughput and memory, calibrated on accepted results."""
