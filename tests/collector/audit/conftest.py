"""The evidence of this checkout and what the audit finds in it, once for all tests."""

from pathlib import Path

import pytest

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.rule import audit


@pytest.fixture(scope="session")
def base():
    return load_evidence(Path(__file__).parents[3])


@pytest.fixture(scope="session")
def findings(base):
    return audit(base)
