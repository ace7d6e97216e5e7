"""Throughput of a fine-tuning step: a roofline whose few constants are learnt from accepted results, with an interval."""
