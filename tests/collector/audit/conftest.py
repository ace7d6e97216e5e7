"""The evidence of this checkout and its findings, loaded once for all tests."""

from pathlib import Path

import pytest

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.rule import audit


@pytest.fixture(scope="session")
def stored_evidence():
    return load_evidence(Path(__file__).parents[3])


@pytest.fixture(scope="session")
def findings(stored_evidence):
    return audit(stored_evidence)
