"""The support matrix is generated from the code and cannot drift from it."""

from harness_making import make_machine
from typer.testing import CliRunner

from tunemark.harness.commands.run import app
from tunemark.harness.vendors.support import support_matrix
from tunemark.schema.files import project_root
from tunemark.schema.records.base import canonical_json


def test_the_committed_matrix_is_what_the_code_says():
    assert (project_root() / "data" / "support.json").read_bytes() == canonical_json(support_matrix()), "run `make support`"


def test_a_plan_with_more_processes_than_cores_says_so_and_is_shown(monkeypatch):
    monkeypatch.setattr("tunemark.harness.commands.run.detect", lambda _backend: make_machine(cpu_usable_cores=2))
    done = CliRunner().invoke(app, ["plan", "smoke-lora", "--devices", "8"])
    assert done.exit_code == 0, done.stderr
    assert "warning: 8 processes share 2 cores" in done.stderr
    assert "device.count" in done.stdout
    assert "share" not in CliRunner().invoke(app, ["plan", "smoke-lora", "--devices", "2"]).stderr
