"""Importers: results, workloads and prices written by other tools, one module per format. Only `collect` writes the database."""
