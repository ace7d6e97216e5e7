"""The ground floor: records, facts, physics and statistics. Imports only pydantic, numpy and the standard library."""
