"""The support matrix: what each device family can do, from the vendors' own tables.

`python -m tunemark.harness.vendors.support` writes data/support.json, which the gate plans with and the site shows.
"""

from tunemark.harness.vendors.protocol import all_vendors
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.plan.capabilities import Feature, SupportMatrix
from tunemark.schema.records.base import canonical_json


def support_matrix() -> SupportMatrix:
    """Return the capabilities of each device family."""
    return SupportMatrix(features=tuple(Feature), families={vendor.backend: vendor.family for vendor in all_vendors()})


if __name__ == "__main__":
    write_atomically(project_root() / "data" / "support.json", canonical_json(support_matrix()))
