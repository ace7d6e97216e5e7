"""Importers: results, workloads and prices that other tools wrote. They read; only `collect` writes the database."""
