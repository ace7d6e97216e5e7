"""A run whose tunemark process is killed leaves a log, and `tunemark recover` makes a submission of it."""

import json
import os
import shutil
import subprocess
import sys

import psutil
import pytest
import typer
from harness_making import cold, only_submission, problems_of, tunemark, warm

from tunemark.harness.commands.run import recover
from tunemark.harness.run import launch as recovery
from tunemark.schema.vocabulary import Status

pytestmark = pytest.mark.process
SMALL = ("--set", "data.sequence_length=16", "--set", "batch.micro_batch=1", "--set", "probe=false", "--set", "gates=false")


def ended(process):
    """Return True for a process that is gone, or that only waits to be collected by its parent: psutil calls such a zombie running."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_run_whose_parent_was_killed_is_recovered_with_all_of_its_steps(tmp_path, facts):
    here, temporary = tmp_path / "here", tmp_path / "tmp"
    here.mkdir()
    (other := temporary / "tunemark-without-a-note").mkdir(parents=True)
    # A process forked from the warm one has not the arguments by which `recover` finds it.
    command = cold("tunemark", "run", "smoke-full", "--steps", "100000", *SMALL)
    environment = os.environ | {"TMPDIR": str(temporary)}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, cwd=here)
    next(line for line in process.stderr if "train, " in line)
    (folder,) = (path for path in temporary.glob("tunemark-*") if path != other)
    nothing = tunemark("recover", "--json", env={"TMPDIR": str(temporary)})
    assert json.loads(nothing.stdout) == []
    workers = psutil.Process(process.pid).children(recursive=True)
    # A worker that does not run cannot notice that its parent is gone.
    for worker in workers:
        worker.suspend()
    process.kill()
    process.wait()
    # A run of another checkout is left alone.
    shutil.copytree(folder, temporary / "tunemark-of-another", ignore=shutil.ignore_patterns("torchelastic*"))
    note = temporary / "tunemark-of-another" / recovery.run_log.ORDER_FILE
    note.write_text(json.dumps(json.loads(note.read_text()) | {"source": "/another/launch.py"}))
    recovering = subprocess.Popen(
        warm("tunemark", "recover", "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert f"recovering {folder}" in recovering.stderr.readline()
    for worker in workers:
        worker.resume()
    answer, _ = recovering.communicate(timeout=60)
    assert all(map(ended, workers))
    (row,) = json.loads(answer)
    logged = row["steps"]
    assert logged > 0
    # It is where the run would have written it, although `recover` was called elsewhere.
    submission = only_submission(here / "submissions")
    assert (row["workload"], row["steps"], len(submission.trace)) == ("smoke-full", logged, logged)
    assert submission.outcome.status is Status.CRASH
    assert submission.outcome.message == "the tunemark process was killed; recovered from the log of the worker"
    assert submission.plan.measurement.max_steps == 100_000
    assert (folder.exists(), note.exists(), other.exists()) == (False, True, True)
    assert problems_of(here / "submissions", facts) == []


def test_a_run_whose_worker_does_not_end_is_left_alone_and_its_process_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recovery, "WORKER_ENDS_S", 0.1)
    monkeypatch.setattr(recovery, "orphans", lambda: [(tmp_path, None)])
    with subprocess.Popen([sys.executable, "-c", "input()", str(tmp_path)], stdin=subprocess.PIPE) as worker:
        with pytest.raises(typer.Exit) as ended:
            recover(as_json=True)
        assert ended.value.exit_code == 1
        printed = capsys.readouterr()
        assert printed.out.strip() == "[]"
        assert f"its worker (process {worker.pid}) is still running after 0.1 s; end it with `kill {worker.pid}`" in printed.err
        worker.kill()
    assert recovery.processes_of(tmp_path) == []
