"""Tries run in processes forked from a warm one: equal to fresh ones, each with its own end, and never ranked."""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from study_making import FACTS, ScriptedBench, make_run

from tunemark.harness.plan.options import Options
from tunemark.harness.plan.resolve import resolve
from tunemark.harness.run import warm_worker
from tunemark.harness.run.launch import launch
from tunemark.harness.run.process import FreshWorker
from tunemark.harness.run.record import write
from tunemark.harness.run.warm_worker import WarmWorker, cold_reason, resident_file_pages, warm_environment
from tunemark.harness.studies.frontier import CONFIRMED, Frontier, FrontierQuestion
from tunemark.harness.studies.series import Bench
from tunemark.harness.worker.levers import ALLOCATOR_VARIABLES
from tunemark.schema.derive import derive
from tunemark.schema.records.trace import Study
from tunemark.schema.vocabulary import Backend, Status

TINY = ("data.sequence_length=16", "data.name=random-tokens", "batch.micro_batch=2")
OPTIONS = Options(overrides=TINY, max_steps=12, probe=False, gates=False)
CLAIMED_CUDA = Path(__file__).with_name("claimed_cuda.py")
STUDY = Study(kind="frontier", study_id="0" * 12, point="try", position=1, settings_sha256="0" * 64)


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A bench whose tries all share one warm process: each is forked from it as it was before the first."""
    made = Bench.here(FACTS, OPTIONS.machine(), tmp_path_factory.mktemp("bench"))
    yield made
    made.close()


def plan(bench, workload="smoke-lora", **options):
    return bench.plan(workload, replace(OPTIONS, **options))


@pytest.mark.slow
@pytest.mark.process
def test_tries_in_a_warm_worker_train_as_fresh_processes_do_and_are_never_ranked(bench):
    long_enough = plan(bench, max_steps=35)
    tries = [bench.trier(long_enough, STUDY)[0] for _ in range(2)]
    fresh, _ = bench.runner(long_enough, STUDY)
    assert [record.outcome.status for record in (*tries, fresh)] == [Status.OK] * 3
    assert tries[0].trace.loss == tries[1].trace.loss == fresh.trace.loss
    assert tries[0].effective == fresh.effective
    assert tries[0].model == fresh.model
    assert [record.process.warm_worker for record in (*tries, fresh)] == [True, True, False]
    assert tries[1].timeline[1].at_s < 1 < fresh.timeline[1].at_s
    assert not any(derive(record).rankable for record in tries)
    peaks = [derive(record).peak_memory.peak_bytes for record in (tries[1], fresh)]
    # A process begins with the largest memory of the one that started it: here with that of the tests before this one.
    inherited = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if peaks[1] > inherited:
        # Measured: 0.996 to 1.005, with and without other work on the machine.
        assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
    else:
        assert peaks[0] <= inherited


@pytest.mark.slow
@pytest.mark.process
def test_a_warm_worker_trains_with_four_bit_weights(bench):
    record, _ = bench.trier(plan(bench, overrides=(*TINY, "method=qlora"), max_steps=3), STUDY)
    assert (record.outcome.status, record.process.warm_worker) == (Status.OK, True)
    assert record.effective.quantisation.startswith("nf4")


def claimed_cuda(*arguments):
    """Return what a process has seen that imports the libraries on a machine that claims to have CUDA devices."""
    done = subprocess.run([sys.executable, CLAIMED_CUDA, *arguments], capture_output=True, text=True, check=True, timeout=300)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.process
def test_importing_the_libraries_opens_no_device_although_they_ask_for_its_capability():
    seen = claimed_cuda()
    assert (seen["reason"], seen["opened"]) == (None, [])
    # What bitsandbytes is answered, and the forms in which a device is named: none, number, names, and torch's own.
    assert seen["capabilities"] == [[8, 0], [9, 0]]
    assert seen["forms"] == [[9, 0], [8, 0], [8, 0], [9, 0], [8, 0]]
    assert seen["restored"]


@pytest.mark.slow
@pytest.mark.process
def test_the_trap_sees_a_library_that_opens_the_device():
    seen = claimed_cuda("--without-answers")
    assert seen["asked by bitsandbytes"]
    assert seen["reason"] is not None


@pytest.mark.slow
@pytest.mark.process
def test_out_of_memory_ends_the_try_and_the_warm_worker_goes_on(bench):
    too_small = replace(plan(bench, overrides=(*TINY, "batch.micro_batch=4096")), limit_memory_bytes=2**30)
    assert bench.trier(too_small, STUDY)[0].outcome.status is Status.OOM_HOST
    after, _ = bench.trier(plan(bench), STUDY)
    assert (after.outcome.status, after.process.warm_worker) == (Status.OK, True)
    assert after.timeline[1].at_s < 1


@pytest.mark.process
def test_the_time_limit_of_a_try_includes_the_start_of_the_warm_process(bench):
    def slow_start(resolved, folder):
        time.sleep(3)
        return FreshWorker(resolved, folder)

    done = launch(plan(bench, timeout_s=3.0), FACTS, bench.machine, threading.Event(), spawn=slow_start)
    assert done.ended_by == "timeout"
    assert done.wall_s < 5.5


@pytest.mark.slow
@pytest.mark.process
def test_a_stopped_try_is_ended_and_a_lost_warm_process_is_replaced(bench):
    warm, machine, stopped = WarmWorker(), bench.machine, threading.Event()
    try:
        stopped.set()
        assert launch(plan(bench, max_steps=None), FACTS, machine, stopped, spawn=warm.spawn).ended_by == "interrupted"
        stopped.clear()
        first = warm._server
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        done = launch(plan(bench), FACTS, machine, stopped, spawn=warm.spawn)
        assert (done.warm_worker, done.log.ended, len(done.log.steps)) == (True, True, 12)
        assert warm._server.pid != first.pid
    finally:
        warm.close()
    assert warm._server is None


@pytest.mark.slow
@pytest.mark.process
def test_a_machine_that_cannot_fork_workers_uses_fresh_processes_and_says_so(bench, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(warm_worker, "READY_WITHIN_S", 0.0)
    other = Bench.here(FACTS, bench.machine, tmp_path)
    record, _ = other.trier(plan(other), STUDY)
    other.close()
    assert (record.outcome.status, record.process.warm_worker) == (Status.OK, False)
    assert "no warm worker: it did not start; each try starts a process" in capsys.readouterr().err


def test_a_device_that_refuses_a_fork_is_tried_again_in_a_fresh_process(tmp_path, monkeypatch, capsys):
    message = "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use 'spawn'"
    started = []

    def run_once(resolved, *, study, out, spawn=None, **_):
        started.append(spawn is not None)
        run = make_run(resolved, study, **({} if spawn is None else {"status": Status.CRASH}))
        outcome = run.outcome.model_copy(update={"message": message if spawn else None})
        process = run.process.model_copy(update={"warm_worker": spawn is not None})
        run = run.model_copy(update={"outcome": outcome, "process": process})
        return run, write(run, out)

    monkeypatch.setattr("tunemark.harness.run.launch.run_once", run_once)
    scripted = ScriptedBench(tmp_path)
    made = Bench.here(FACTS, scripted.machine, tmp_path)
    record, _ = made.trier(scripted.bench.plan("smoke-lora", OPTIONS), STUDY)
    assert (record.outcome.status, started) == (Status.OK, [True, False])
    assert len(list(tmp_path.rglob("*.json"))) == 1
    assert "no warm worker: RuntimeError: Cannot re-initialize CUDA" in capsys.readouterr().err


def test_several_processes_empty_caches_and_devices_that_cannot_be_forked_start_fresh(machine):
    assert cold_reason(resolve("smoke-lora", FACTS, machine, Options()).plan) is None
    assert "launcher" in cold_reason(resolve("smoke-lora", FACTS, machine, Options(devices=2)).plan)
    assert "caches must be new" in cold_reason(resolve("smoke-lora", FACTS, machine, Options(cold=True)).plan)
    neuron = resolve("smoke-lora", FACTS, machine, Options()).plan
    neuron = neuron.model_copy(update={"device": neuron.device.model_copy(update={"backend": Backend.NEURON})})
    assert "neuron" in cold_reason(neuron)


def test_the_warm_process_has_the_allocators_settings_when_it_imports_torch(bench, monkeypatch):
    for name in (*ALLOCATOR_VARIABLES, *warm_worker.ONLY_CHECK_DEVICES):
        monkeypatch.delenv(name, raising=False)
    here = plan(bench).plan
    gpu = here.model_copy(update={"device": here.device.model_copy(update={"backend": Backend.CUDA})})
    assert warm_environment(gpu)["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert not {"PYTORCH_ALLOC_CONF", *warm_worker.ONLY_CHECK_DEVICES} & set(warm_environment(here))


def test_the_pages_of_libraries_in_memory_are_ranges_in_order():
    ranges = resident_file_pages()
    assert sum(length for _, length in ranges) > 2**20
    assert all(first + length < second for (first, length), (second, _) in pairwise(ranges))


# The frontier confirms what tries have found


def with_trier(scripted, script):
    """Return a bench whose tries end by another script than its runs."""
    tries = ScriptedBench(scripted.out, script, scripted.machine)
    return tries, replace(scripted.bench, trier=tries.bench.runner)


def fits_rows(most):
    return lambda plan, _ran: {"status": Status.OK if plan.batch.micro_batch <= most else Status.OOM_HOST, "steps": 3}


def test_the_largest_micro_batch_is_confirmed_in_a_fresh_process(tmp_path):
    scripted = ScriptedBench(tmp_path, fits_rows(11))
    tries, bench = with_trier(scripted, fits_rows(11))
    search = Frontier.of("smoke-lora", Options(), bench, FrontierQuestion())
    assert search.search() is None
    assert (search.edges[0].micro_batch, search.edges[0].first_failed) == (11, "12 rows")
    assert len(tries.ran) == 6
    assert [point.partition(",")[2].split(",")[0].strip() for point in scripted.ran] == ["batch.micro_batch=11"]
    assert scripted.ran[0].endswith(CONFIRMED)


def test_an_edge_that_a_fresh_process_does_not_confirm_is_lowered(tmp_path):
    scripted = ScriptedBench(tmp_path, fits_rows(9))
    tries, bench = with_trier(scripted, fits_rows(11))
    search = Frontier.of("smoke-lora", Options(), bench, FrontierQuestion())
    assert search.search() is None
    assert (search.edges[0].micro_batch, search.edges[0].first_failed) == (9, "10 rows")
    assert len(scripted.ran) == 3
    assert len(tries.ran) == len(set(tries.ran))


def test_a_warm_worker_ends_with_its_series(tmp_path):
    closed = []
    scripted = ScriptedBench(tmp_path, fits_rows(4))
    bench = replace(scripted.bench, close=lambda: closed.append(True))
    Frontier.of("smoke-lora", Options(), bench, FrontierQuestion(most=4)).search()
    assert closed == [True]
