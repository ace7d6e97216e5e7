"""The evidence of this checkout and its findings, loaded once for all tests."""

from pathlib import Path

import pytest

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.predict.cross_validation import audit_all

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def stored_evidence():
    return load_evidence(ROOT)


@pytest.fixture(scope="session")
def findings(stored_evidence):
    return audit_all(stored_evidence)
