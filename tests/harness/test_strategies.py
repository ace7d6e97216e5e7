"""Two real processes over gloo: every strategy does the same work as one process with the same global batch."""

import contextlib
import os
import subprocess

import psutil
import pytest
from harness_making import cold, only_submission, run_of, warm, writer_of

from tunemark.harness.plan.resolve import Options, resolve
from tunemark.harness.run.launch import merge_failures
from tunemark.harness.run.run_log import RunLog
from tunemark.harness.vendors.cpu import Cpu
from tunemark.harness.worker.models import build_model
from tunemark.schema.vocabulary import Phase, Status

STEPS = 4
SMALL = ("probe=false", "gates=false", "data.sequence_length=32", "timeout=200")
WORDS = [word for each in SMALL[:-1] for word in ("--set", each)]
SHARDING = {"ddp": None, "fsdp2": "torch FSDPModule"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """One process that does in four micro-batches what two do in two each."""
    settings = (*SMALL, "batch.gradient_accumulation=4", "save=true")
    done, submission = run_of(tmp_path_factory.mktemp("alone"), "smoke-full", *settings, steps=STEPS)
    assert done.returncode == 0, done.stderr
    assert [mark.phase for mark in submission.timeline][-2:] == [Phase.SAVE, Phase.TEARDOWN]
    return submission


def rank_of(process):
    """Return the rank of a process; None for a helper of a library that has ended by now."""
    with contextlib.suppress(psutil.Error):
        return process.environ().get("RANK")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "further"),
    [("ddp", ()), ("fsdp2", ()), ("zero1", ("launcher=accelerate",)), ("zero2", ("offload=optimizer",)), ("zero3", ())],
    ids=lambda value: value if isinstance(value, str) else "-".join(value) or "torchrun",
)
def test_two_processes_learn_what_one_learns(alone, tmp_path, strategy, further):
    if strategy.startswith("zero"):
        pytest.importorskip("deepspeed", reason="DeepSpeed is not installed; ZeRO needs it, and the Neuron stack does not include it")
    settings, built = (*SMALL, *further, "save=true"), tmp_path / "extensions"
    done, both = run_of(
        tmp_path, "smoke-full", *settings, steps=STEPS, devices=2, sharding=strategy, env={"TORCH_EXTENSIONS_DIR": str(built)}
    )
    assert both.outcome.status is Status.OK, done.stderr
    assert not built.exists(), "DeepSpeed compiles an extension, which takes a minute"
    assert both.saved_bytes == alone.saved_bytes > 4 * alone.model.parameters
    assert both.plan.batch.global_batch == alone.plan.batch.global_batch == 8
    assert both.trace.loss == pytest.approx(alone.trace.loss, rel=1e-4)
    assert both.trace.supervised_tokens == alone.trace.supervised_tokens
    assert both.effective.processes == 2
    assert both.effective.process_group == "gloo"
    assert both.effective.sharding == SHARDING.get(strategy, f"DeepSpeed ZeRO stage {strategy[-1]}")
    assert both.effective.gradient_reduction == ("fp32" if strategy == "fsdp2" else None)
    assert [rank.rank for rank in both.ranks] == [0, 1]
    assert all(len(rank.own_work_s) == STEPS and rank.host_rss_bytes for rank in both.ranks)
    assert both.model.trainable_parameters == alone.model.trainable_parameters
    whole = alone.model.gradient_bytes
    gradients = {"ddp": whole, "fsdp2": whole // 2}.get(strategy)
    assert both.model.gradient_bytes == gradients
    assert ("DeepSpeed" in (both.model.gradient_bytes_reason or "")) is (gradients is None)


@pytest.mark.nightly
def test_zero3_shards_pretrained_weights_while_it_loads_them(tmp_path, facts, machine):
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed; ZeRO needs it, and the Neuron stack does not include it")
    plan = resolve("smoke-full", facts, machine, Options()).plan
    build_model(plan, facts.model("tiny-llama"), None, None, tmp_path, Cpu()).save_pretrained(tmp_path / "weights")
    given = {"steps": 8, "weights": f"pretrained:{tmp_path / 'weights'}"}
    alone, one = run_of(tmp_path / "alone", "smoke-lora", *SMALL, "batch.gradient_accumulation=4", **given)
    assert alone.returncode == 0, alone.stderr
    settings = (*SMALL, "batch.gradient_accumulation=2", "save=true")
    done, both = run_of(tmp_path / "both", "smoke-lora", *settings, devices=2, sharding="zero3", **given)
    assert both.outcome.status is Status.OK, done.stderr
    assert both.trace.loss == pytest.approx(one.trace.loss, rel=1e-3)
    assert both.model.parameters == one.model.parameters
    assert both.model.trainable_parameters == one.model.trainable_parameters
    assert both.saved_bytes


@pytest.mark.process
@pytest.mark.nightly
def test_a_killed_process_is_named_by_its_rank_and_the_others_are_ended(tmp_path):
    command = warm("tunemark", "run", "smoke-full", *WORDS, "--steps", 100_000, "--devices", 2, "--out", tmp_path)
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    next(line for line in process.stderr if "train, " in line)
    workers = [writer_of(tmp_path), writer_of(tmp_path, "rank-1-log.jsonl")]
    workers[1].kill()
    process.communicate(timeout=120)
    both = only_submission(tmp_path)
    assert both.outcome.status is Status.CRASH
    assert both.outcome.message == "rank 1 was killed by SIGKILL"
    assert len(both.trace) > 0
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in workers)


def test_the_first_failure_of_any_process_is_reported(tmp_path):
    (tmp_path / "rank-1-log.jsonl").write_text('{"event": "failure", "at_s": 2.0, "status": "crash", "message": "lost", "fix": "x"}\n')
    log = RunLog(failure={"at_s": 3.0, "status": "crash", "message": "the others left", "fix": "y"})
    assert merge_failures(log, tmp_path).failure["message"] == "rank 1: lost"


@pytest.mark.process
@pytest.mark.nightly
def test_all_processes_of_a_run_of_which_one_hangs_are_gone_after_the_timeout(tmp_path):
    # Forked processes are no descendants of the run, by which it finds what to end.
    command = cold("tunemark", "run", "smoke-full", *WORDS, "--steps", 100_000, "--set", "timeout=60", "--devices", 2, "--out", tmp_path)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert any("train, " in line for line in process.stderr), "the run ended before it trained"
    workers = psutil.Process(process.pid).children(recursive=True)
    next(p for p in workers if rank_of(p) == "1").suspend()
    process.communicate(timeout=120)
    assert only_submission(tmp_path).outcome.status is Status.TIMEOUT
    assert [p for p in psutil.wait_procs(workers, timeout=5)[1] if p.status() != psutil.STATUS_ZOMBIE] == []
