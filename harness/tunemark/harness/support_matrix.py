"""The support matrix as data: `make support` writes it to data/support.json, and a test fails when that differs from the code."""

from importlib.util import find_spec

from tunemark.harness.devices.features import Feature
from tunemark.harness.needs import NEEDS
from tunemark.harness.support import cannot
from tunemark.schema.facts.fact_base import SUPPORT_FILE as FILE
from tunemark.schema.facts.fact_base import SupportMatrix
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.records.base import canonical_json
from tunemark.schema.vocabulary import Backend


def matrix() -> SupportMatrix:
    """Return what each device family that there is code for can do; the scripted one measures nothing and is left out."""
    families = [backend for backend in Backend if backend is not Backend.FAKE and find_spec(f"tunemark.harness.devices.{backend.value}")]
    return SupportMatrix(
        features=tuple(feature.value for feature in Feature),
        cannot={backend: {feature.value: reason for feature, reason in cannot(backend).items()} for backend in families},
        needs={backend: _needs(backend) for backend in families},
    )


def _needs(backend: Backend) -> dict[str, str]:
    return {feature.value: package for feature, (package, _) in NEEDS[backend].items() if feature not in cannot(backend)}


if __name__ == "__main__":
    write_atomically(project_root() / "data" / FILE, canonical_json(matrix()))
