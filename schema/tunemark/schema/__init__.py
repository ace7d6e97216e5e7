"""The base of the other packages: records, facts, physics and statistics. Imports only pydantic, numpy, packaging, psutil and the standard library."""

import re

VERSION = "0.2.0"
"""Version of Tunemark, also where it runs from its source without being installed."""
PUBLISHED = False
"""True once this version is on the Python index. The README, the pages and the notebook take their install lines from it."""


def as_installed(line: str, source: str = ".") -> str:
    """Return a line that installs Tunemark from the index as it works today: until it is published, from a clone or another source."""
    return line if PUBLISHED or not re.search(r"\bpip install\b", line) else re.sub(r"\btunemark\b", source, line)
