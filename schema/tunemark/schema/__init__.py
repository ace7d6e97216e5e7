"""The base of the other packages: records, facts, physics and statistics. Imports only pydantic, numpy and the standard library."""

VERSION = "0.1.0"
"""Version of Tunemark, also where it runs from its source without being installed."""
