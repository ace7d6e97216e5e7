"""What all tests share: on a machine that others use too, no example fails for the time that it took."""

import os

from hypothesis import settings

settings.register_profile("any machine", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("any machine")
