"""Fixtures of the harness' tests."""

import os

# Read when torch is loaded, here and in each worker: threads that wait by spinning stop one another where other work runs beside.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
from harness_making import ROOT, make_machine

from tunemark.schema.facts.fact_base import FactBase


@pytest.fixture(scope="session")
def facts():
    return FactBase(ROOT / "data")


@pytest.fixture
def machine():
    return make_machine()
