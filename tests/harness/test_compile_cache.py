"""The compile cache: cold and warm are distinguished, --cold gives a cold run, and an unknown state has a reason."""

import sys
from types import SimpleNamespace

import pytest
from harness_making import only_submission, tunemark

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.worker import levers
from tunemark.harness.worker.levers import CacheWatch, neuron_folder
from tunemark.schema.vocabulary import Status

QUICK = ("--steps", 3, "--set", "compile=blocks", "--set", "data.sequence_length=16", "--set", "probe=false", "--set", "gates=false")


def cache_of_a_run(out, folder, *more):
    done = tunemark("run", "smoke-full", *QUICK, *more, "--out", out, env={"TORCHINDUCTOR_CACHE_DIR": str(folder)})
    submission = only_submission(out)
    assert submission.outcome.status is Status.OK, done.stderr
    return submission


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def first(cache, tmp_path_factory):
    """A compiled run that finds an empty cache."""
    return cache_of_a_run(tmp_path_factory.mktemp("first"), cache)


@pytest.mark.nightly
def test_a_compiled_run_says_in_which_step_it_compiled(first):
    assert (first.events[0].step, first.events[0].kind) == (1, "compile")
    assert first.effective.compile == "blocks, inductor"


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.usefixtures("first")
def test_a_run_with_cold_compiles_again_and_leaves_the_cache_as_it_was(cache, tmp_path):
    filled = sorted(cache.rglob("*"))
    cold = cache_of_a_run(tmp_path, cache, "--set", "cold=true")
    assert (cold.process.compile_cache, cold.plan.measurement.cold) == ("cold", True)
    assert filled
    assert len(sorted(cache.rglob("*"))) == len(filled)


def test_a_cold_run_overrules_a_cache_folder_in_the_flags_of_the_neuron_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("NEURON_CC_FLAGS", "--cache_dir=/var/shared -O1")
    assert levers.fresh(tmp_path)["NEURON_CC_FLAGS"] == "-O1"
    monkeypatch.setenv("NEURON_CC_FLAGS", "--cache_dir=/var/shared")
    assert levers.fresh(tmp_path)["NEURON_CC_FLAGS"] == ""
    assert neuron_folder({"NEURON_CC_FLAGS": "--cache_dir=/var/shared -O1", "NEURON_COMPILE_CACHE_URL": "/other"}) == "/var/shared"
    assert neuron_folder({"NEURON_COMPILE_CACHE_URL": "s3://bucket/cache"}) == "s3://bucket/cache"
    assert neuron_folder({}) == levers.NEURON_DEFAULT


HIT = "INFO ||NEURON_CC_WRAPPER||: Using a cached neff at CACHE/MODULE_1/model.neff\n"


@pytest.mark.parametrize(
    ("in_folder", "graphs", "printed", "said"),
    [
        ((0, 2), 2, "", ("cold", None)),
        ((3, 4), 2, HIT, ("cold", None)),
        ((3, 3), 2, HIT, ("warm", None)),
        ((3, 3), 0, "", ("none", None)),
        ((3, 3), 2, "", (None, "printed no hit")),
        ((None, None), 2, HIT, (None, "some graphs came from it")),
        ((None, None), 2, "", (None, "no hit was printed")),
    ],
)
def test_on_neuron_the_cache_state_follows_from_its_folder_and_the_compilers_output(
    tmp_path, monkeypatch, in_folder, graphs, printed, said
):
    (before, after), (state, reason) = in_folder, said
    monkeypatch.setattr(levers, "compiled_graphs", lambda: graphs)
    place = tmp_path / "cache"
    for number in range(after or 0):
        (place / f"MODULE_{number}").mkdir(parents=True)
        (place / f"MODULE_{number}" / "model.neff").touch()
    (tmp_path / "output").write_text(printed)
    found = CacheWatch("s3://bucket/cache" if before is None else str(place), before, tmp_path / "output").state()
    assert found["state"] == state
    assert reason is None or reason in found["reason"]


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


def test_an_extension_that_a_library_compiles_in_the_run_makes_it_cold(tmp_path, monkeypatch, facts, machine):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    watch = CacheWatch.of(resolve("smoke-full", facts, machine, Options()).plan, tmp_path)
    assert watch.state()["state"] != "cold"
    built = tmp_path / "extensions" / "comm" / "comm.so"
    built.parent.mkdir(parents=True)
    built.touch()
    assert watch.state() == {"state": "cold", "reason": None}
    assert CacheWatch.of(resolve("smoke-full", facts, machine, Options()).plan, tmp_path).state()["state"] != "cold"
