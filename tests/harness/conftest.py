"""Fixtures of the harness' tests."""

import os

# Read when torch is loaded, here and in each worker: threads that wait by spinning stop one another where other work runs beside.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from harness_making import FACTS, make_machine


@pytest.fixture(scope="session")
def facts():
    return FACTS


@pytest.fixture
def machine():
    return make_machine()
