"""The gate: checks of single files, and checks across files."""
