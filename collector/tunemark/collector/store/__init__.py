"""The store: rows, the database they are loaded into, and SQL queries to it."""
