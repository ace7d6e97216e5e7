"""The base of the other packages: records, facts, physics and statistics. Imports only pydantic, numpy and the standard library."""
