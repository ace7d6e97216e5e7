"""Fixtures of the harness' tests."""

import pytest
from harness_making import ROOT, make_machine

from tunemark.schema.facts import FactBase


@pytest.fixture(scope="session")
def facts():
    return FactBase(ROOT / "data")


@pytest.fixture
def machine():
    return make_machine()
