"""Fixtures of the harness' tests."""

import os

# Read when torch is loaded, here and in each worker: threads that wait by spinning stop one another where other work runs beside.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from harness_making import FACTS, make_machine

# Several threads for a tiny model only wait for one another where other tests run beside.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def facts():
    return FACTS


@pytest.fixture
def machine():
    return make_machine()
