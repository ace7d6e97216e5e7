"""The gate: the verdict on one file, and the verdict on files together."""
