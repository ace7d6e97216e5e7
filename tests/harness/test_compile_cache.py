"""The compile cache: cold and warm are distinguished, --cold gives a cold run, and an unknown state has a reason."""

import sys
from types import SimpleNamespace

import pytest
from harness_making import run_of

from tunemark.harness.run import launch
from tunemark.harness.worker import levers
from tunemark.schema.vocabulary import Status


@pytest.mark.nightly
def test_a_compiled_run_names_the_step_and_one_with_cold_compiles_again_and_leaves_the_cache_as_it_was(tmp_path):
    cache, runs = tmp_path / "cache", []
    for name, settings in (("first", ()), ("again", ("cold=true",))):
        quick = ("compile=blocks", "data.sequence_length=16", "probe=false", "gates=false", *settings)
        done, submission = run_of(tmp_path / name, "smoke-full", *quick, steps=3, env={"TORCHINDUCTOR_CACHE_DIR": str(cache)})
        assert submission.outcome.status is Status.OK, done.stderr
        runs.append((submission, sorted(cache.rglob("*"))))
    (first, filled), (cold, left) = runs
    assert (first.events[0].step, first.events[0].kind) == (1, "compile")
    assert first.effective.compile == "blocks, inductor"
    assert (cold.process.compile_cache, cold.plan.measurement.cold) == ("cold", True)
    assert filled
    assert len(left) == len(filled)


def test_a_cold_run_overrules_a_cache_folder_in_the_flags_of_the_neuron_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("NEURON_CC_FLAGS", "--cache_dir=/var/shared -O1")
    assert launch.fresh(tmp_path)["NEURON_CC_FLAGS"] == "-O1"
    monkeypatch.setenv("NEURON_CC_FLAGS", "--cache_dir=/var/shared")
    assert launch.fresh(tmp_path)["NEURON_CC_FLAGS"] == ""


@pytest.mark.parametrize(
    ("counters", "state"),
    [
        ({"inductor": {}, "stats": {"unique_graphs": 0}}, "none"),
        ({"inductor": {"fxgraph_cache_hit": 2}, "stats": {"unique_graphs": 2}}, "warm"),
        ({"inductor": {"fxgraph_cache_hit": 2, "fxgraph_cache_miss": 1}, "stats": {"unique_graphs": 3}}, "cold"),
        ({"inductor": {"fxgraph_cache_bypass": 1}, "stats": {"unique_graphs": 1}}, "cold"),
        ({"inductor": {}, "stats": {"unique_graphs": 1}}, "cold"),
    ],
)
def test_a_graph_that_bypassed_the_cache_was_compiled(monkeypatch, counters, state):
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    assert levers.torch_state() == state
