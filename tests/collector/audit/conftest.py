"""The evidence of this checkout and what the audit finds in it, once for all tests."""

from pathlib import Path

import pytest

from tunemark.collector.audit.engine import audit
from tunemark.collector.audit.loaded import base_of


@pytest.fixture(scope="session")
def base():
    return base_of(Path(__file__).parents[3])


@pytest.fixture(scope="session")
def findings(base):
    return audit(base)
