"""A small database for the tests of the site, written by `tunemark collect` from a temporary checkout.

The checkout contains a few real cards, two documents, a round of MLPerf and five submissions, with hostile text in the
fields that accept it. `fixture_rows.sql` adds hostile text to the other columns, and rows that need more data than this:
two ranks, predictions, and findings that do not depend on future audit rules.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
from factories import CHECKOUT as ROOT
from factories import bare_submission, run_id, save, with_overrides

from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.submission import Submission
from tunemark.schema.records.trace import arm_point
from tunemark.site.commands import open_server

AS_OF = "2026-11-22"
HOSTILE = """<script>window.hacked=1</script> | [x](javascript:alert(1)) `tick` *star* <img src=x onerror=window.hacked=1> {{ 7*7 }} "quote" &amp;"""
ENTRY, STRANGE_ENTRY, ROUND = "mlperf-v9.1-acme-box", "mlperf-v9.1-stranger", "mlperf-v9.1"
AB, STRANGE_STUDY = "ab0123456789", "cd0123456789"
H100, STEPS = "nvidia-h100-80gb-sxm", 150
COPIED = (
    *(f"accelerators/{name}.toml" for name in (H100, "nvidia-t4")),
    *(f"models/{name}.toml" for name in ("llama-2-70b", "llama-3.1-8b", "tiny-bert", "tiny-llama")),
    *("workloads/smoke-lora.toml", "workloads/golden/smoke-lora.toml", "prices/aws_sizes.toml", "known"),
)
"""Files and folders of data/ that are copied to the checkout."""
OWN = Path(__file__).with_name("checkout")
"""Prices, sources and the support matrix of the checkout. `{HOSTILE}` is the hostile text."""


# Submissions ---------------------------------------------------------------------------------------


def _run(day: int, steps: int = STEPS, **overrides: Any) -> Submission:
    return bare_submission(steps, run_id=run_id(day), started_at=f"2026-11-{day:02}T10:00:00.000001Z", **overrides)


def _study(kind: str, study_id: str, point: str, position: int = 1) -> dict[str, Any]:
    return {"kind": kind, "study_id": study_id, "point": point, "position": position, "settings_sha256": "0" * 64}


def _slower(run: Submission, factor: float) -> dict[str, Any]:
    trace = run.trace.model_dump(mode="json")
    start = trace["started_at_s"]
    return trace | {"completed_at_s": [round(start + (at_s - start) * factor, 6) for at_s in trace["completed_at_s"]]}


def with_hostile_text(path: Path) -> str:
    """Return a file of the fixture with the hostile text, as a string of JSON, in place of its name in braces."""
    return path.read_text(encoding="utf-8").replace("{HOSTILE}", json.dumps(HOSTILE)[1:-1])


def _submissions() -> dict[str, Submission]:
    runs = json.loads(with_hostile_text(Path(__file__).with_name("fixture_runs.json")))
    measured = _run(
        1,
        study=_study("ab", AB, arm_point("b", "attention=sdpa", 1)),
        **runs["measured"],
    )
    slower = _run(
        2, study=_study("ab", AB, arm_point("a", "attention=eager", 1), 2), trace=_slower(measured, 1.002), **{"process.wall_s": 20.0}
    )
    rounded = _slower(measured, 1.0001)
    rounded["loss"] = [loss and loss * 1.001 for loss in rounded["loss"]]
    other = _run(3, trace=rounded, **{"plan.precision.compute": "bf16"})
    crashed = _run(4, 0, **runs["crashed"])
    strange = _run(
        5,
        study=_study("sweep", STRANGE_STUDY, HOSTILE),
        trace=_slower(measured, 1.0002),
        **{"environment.devices.0.name": HOSTILE, "warnings.0.message": HOSTILE},
    )
    return {"measured": measured, "slower": slower, "other": other, "crashed": crashed, "strange": strange}


SUBMISSIONS = _submissions()
MEASURED, SLOWER, OTHER, CRASHED, STRANGE = (content_id(canonical_json(submission)) for submission in SUBMISSIONS.values())


# Documents and entries -----------------------------------------------------------------------------


def _claim(value: float, printed: str, **more: Any) -> dict[str, Any]:
    return {"value": value, "printed": printed, **more}


def _documents() -> dict[str, dict[str, Any]]:
    """Return the records of data/published by path: two cut-down results of document 003, and one of a hostile 004, whose sources are files."""
    first, second = (json.loads((ROOT / f"data/published/003/003-00{number}.json").read_bytes()) for number in (1, 2))
    readings = [{"meaning": "one optimizer step", "value": 4.7}, {"meaning": "one micro-batch", "value": 150.4}]
    claims = {
        "peak_memory_bytes": _claim(78.0 * 2**30, "78 GiB"),
        "model_memory_bytes": _claim(16.0 * 2**30, "16 GiB"),
        "step_time_s": _claim(4.7, "4.7", readings=readings),
        "tokens_per_s": _claim(41_000.0, "41,000"),
    }
    out_of_memory = {"model": "Gemma 2 9B", "peak_memory_bytes": "OOM (8.4 GiB)", "step_time_s": "OOM"}
    hostile = {
        "id": "004-001",
        "source": "004",
        "section": HOSTILE,
        "note": HOSTILE,
        "labels": {"model": HOSTILE, "accelerator": HOSTILE},
        "conditions": {"model": None, "method": "lora", "dataset": HOSTILE, "sequence_length": 8192},
        "claims": {"peak_memory_bytes": _claim(1.0, HOSTILE, note=HOSTILE)},
    }
    return {
        "003/003-001.json": first | {"claims": claims, "note": "Trained at twice its context."},
        "003/003-002.json": with_overrides(second, {"claims": {}, "status": "oom", "labels": out_of_memory, "conditions.method": "qlora"}),
        "004/004-001.json": first | hostile,
    }


def _entries() -> dict[str, dict[str, Any]]:
    """Return the records of data/converted by path: an entry of ten runs, the first of which ends early, and one of a stranger."""
    real = json.loads((ROOT / "data/converted/mlperf/v5.1/mlperf-v5.1-gigacomputing-g894-ad1-pytorch.json").read_bytes())
    curve = {name: values[:1] for name, values in real["runs"][0]["curve"].items()}
    ended = real["runs"][0] | {"status": "incomplete", "time_to_target_s": None, "samples": 1536, "curve": curve}
    ended |= dict.fromkeys(("init_s", "train_s", "trained_samples"))
    runs = [ended, *real["runs"][1:]]
    acme = {"id": ENTRY, "round": "v9.1", "submitter": "Acme", "notes": ["Two racks."], "runs": runs}
    acme |= {"conditions.accelerator": H100, "conditions.accelerator_count": 16, "conditions.framework": {"framework": "NeMo 2"}}
    acme |= {"system.name": "Box of sixteen", "system.nodes": 2, "system.availability": None}
    stranger = {"id": STRANGE_ENTRY, "round": "v9.1", "submitter": HOSTILE, "notes": [HOSTILE], "target_eval_loss": None}
    stranger |= {"runs": [{"file": HOSTILE, "status": "aborted"}], "system": {"name": HOSTILE, "accelerator_printed": HOSTILE}}
    stranger |= {"conditions.accelerator": None, "conditions.accelerator_count": None, "conditions.global_batch": None}
    return {f"mlperf/v9.1/{changed['id']}.json": with_overrides(real, changed) for changed in (acme, stranger)}


# The checkout and its database ---------------------------------------------------------------------


def make_checkout(root: Path) -> Path:
    """Write a checkout with all records above and return its folder."""
    for name in COPIED:
        source, target = ROOT / "data" / name, root / "data" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
    records = {f"published/{path}": record for path, record in _documents().items()}
    records |= {f"converted/{path}": record for path, record in _entries().items()}
    for path in (path for path in OWN.rglob("*") if path.is_file()):
        target, content = root / path.relative_to(OWN), with_hostile_text(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(canonical_json(json.loads(content)) if path.suffix == ".json" else content.encode())
    for path, record in records.items():
        (root / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "data" / path).write_bytes(canonical_json(record))
    for submission in SUBMISSIONS.values():
        save(root, submission)
    (root / "submissions" / "bad.json").write_bytes(canonical_json({"format": HOSTILE}))
    return root


OPEN_GATE = """
from tunemark import cli
from tunemark.collector.gate import check

check._submission_problems = check.fact_record_problems = lambda *_: []
cli.main()
"""
"""The command line without the gate's checks: the pages must stay safe whatever it lets through."""


def make_database(folder: Path) -> Path:
    """Write the checkout and its database into a folder, and return the path of the database."""
    root, path = make_checkout(folder / "checkout"), folder / "tunemark.duckdb"
    command = [sys.executable, "-c", OPEN_GATE, "collect", "--db", str(path), "--as-of", AS_OF]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "TUNEMARK_ROOT": str(root)})
    # Exit code 3: bad.json is refused, and everything else is loaded.
    assert done.returncode == 3, done.stderr
    with duckdb.connect(str(path)) as connection:
        assert connection.sql("select file from load_problems").fetchall() == [("submissions/bad.json",)], done.stderr
        rows = Path(__file__).with_name("fixture_rows.sql").read_text(encoding="utf-8")
        connection.execute(rows.format(HOSTILE=HOSTILE, H100=H100, MEASURED=MEASURED, SLOWER=SLOWER, OTHER=OTHER, STRANGE=STRANGE))
    return path


def make_empty(database: Path, path: Path) -> Path:
    """Write a copy of a database without rows and return its path."""
    shutil.copy(database, path)
    with duckdb.connect(str(path)) as connection:
        for (name,) in connection.sql("select table_name from duckdb_tables()").fetchall():
            connection.execute(f'delete from "{name}"')  # noqa: S608 - a table of the collector
    return path


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a built site and yield its address."""
    with open_server(folder, 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()
