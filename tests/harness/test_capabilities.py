"""The support matrix is generated from the code and cannot drift from it."""

from tunemark.harness.plan.capabilities import support_matrix
from tunemark.harness.vendors.protocol import Feature
from tunemark.schema.files import project_root
from tunemark.schema.records.base import canonical_json
from tunemark.schema.vocabulary import Backend


def test_the_committed_matrix_is_what_the_code_says():
    assert (project_root() / "data" / "support.json").read_bytes() == canonical_json(support_matrix()), "run `make support`"


def test_every_reason_is_of_a_feature_and_the_scripted_device_is_left_out():
    made = support_matrix()
    assert set(made.features) == {feature.value for feature in Feature}
    assert Backend.FAKE not in made.cannot
    assert Backend.CPU in made.cannot
