"""Run a plan in the parent process: start the worker, watch it and write the record."""
