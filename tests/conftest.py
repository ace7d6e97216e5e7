"""What all tests share: on a machine that others use too, no example fails for the time that it took."""

import os

import pytest
from hypothesis import settings

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
settings.register_profile("any machine", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("any machine")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files with slow tests first, so that no process is left with one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
