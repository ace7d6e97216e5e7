"""Valid records with everything defaulted that a test does not care about."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from gate_mutations.copy_corruptions import with_warnings
from gate_mutations.honest import cpu, cpu_machine
from gate_mutations.simulated import FACTS
from pydantic import ValidationError

from tunemark.collector.audit.load import load_evidence
from tunemark.collector.audit.rule import audit
from tunemark.collector.predict.calibration_rows import Calibration, calibrate
from tunemark.collector.predict.cross_validation import HeldOut
from tunemark.collector.predict.fit import Fit, fit
from tunemark.harness.plan.resolve import Options, resolve
from tunemark.schema.derive import RANDOM_WEIGHTS
from tunemark.schema.option_rates import unmeasured
from tunemark.schema.physics.work import Missing
from tunemark.schema.records.base import canonical_json, content_id
from tunemark.schema.records.published import PublishedResult
from tunemark.schema.records.submission import Submission, submission_name
from tunemark.schema.throughput import Combination, Range, interval_of, predict

CHECKOUT = Path(__file__).resolve().parents[2]
RUN_ID = "0123456789abcdef0123456789abcdef"
BARE = Path(__file__).with_name("data") / "bare_submission.json"
SIMULATED = ("machine", "options", "ending", "rss_bytes")
TEST_CPU = cpu_machine("Test CPU", 2, 4, 2, 8.0)


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str


Tunemark = Callable[..., Said]


def with_overrides(content: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of nested content with dotted paths replaced: `{"plan.batch.micro_batch": 8}`."""
    changed = json.loads(json.dumps(content))
    for path, value in overrides.items():
        *folders, name = path.split(".")
        node = changed
        for folder in folders:
            node = node[int(folder)] if isinstance(node, list) else node[folder]
        if isinstance(node, list):
            node[int(name)] = value
        else:
            node[name] = value
    return changed


def make_trace_content(steps: int, *, rows: int, tokens: int, start: float = 2.0) -> dict[str, Any]:
    """Return steps of 50 to 52 ms with a first one of 300 ms; whole milliseconds, so that files are short."""
    times = [0.3, *(0.05 + (step * 7 % 5) / 2_000 for step in range(1, steps))]
    completed = [round(start + sum(times[: step + 1]), 6) for step in range(steps)]
    return {
        "started_at_s": start,
        "completed_at_s": completed,
        "slot_tokens": [rows * tokens] * steps,
        "real_tokens": [rows * tokens] * steps,
        "supervised_tokens": [rows * (tokens - 1)] * steps,
        "documents": [rows] * steps,
        "rows": [rows] * steps,
        "loss": [round(4.0 - step / steps, 4) for step in range(steps)],
    }


def make_content(steps: int = 130, run_id: str = RUN_ID, of: str = "lora", **changes: Any) -> dict[str, Any]:
    """Return a run on a CPU without a card like a committed one, which the gate accepts, as JSON content.

    Dotted paths and sections are replaced, and the warnings that follow are added; `machine`, `options` and the like are of the simulation.
    """
    scenario = {name: changes.pop(name) for name in SIMULATED if name in changes}
    began = {"machine": TEST_CPU, "started_at": datetime(2026, 11, 20, 12, microsecond=1, tzinfo=UTC), "step_s": 0.05}
    scenario = {"options": Options(max_steps=steps or None), **began, **scenario} | ({"steps": 0} if not steps else {})
    content = cpu(of, int(run_id, 16) % 1_009, **scenario) | {"run_id": run_id}
    changed = with_overrides(content, changes)
    # A record that cannot be read has no warnings.
    with suppress(ValidationError):
        return changed if not changes or "warnings" in changes else with_warnings(changed)
    return changed


def bare_content(steps: int = 130, **overrides: Any) -> dict[str, Any]:
    """Return a submission as JSON content, dotted paths replaced; not validated. The gate would find what is missing."""
    plan = resolve("smoke-lora", FACTS, TEST_CPU, Options()).plan.model_dump(mode="json")
    trace = make_trace_content(steps, rows=plan["batch"]["global_batch"], tokens=plan["data"]["sequence_length"])
    end = trace["completed_at_s"][-1] if steps else 2.0
    content = json.loads(BARE.read_bytes()) | {"requested": {"workload": plan["workload"]}, "plan": plan, "trace": trace}
    ends = {"outcome.last_good_step": steps, "timeline.4.at_s": round(end + 0.1, 6), "process.wall_s": round(end + 0.5, 6)}
    return with_overrides(content, {**ends, "warnings.0.message": RANDOM_WEIGHTS, **overrides})


def make_submission(steps: int = 130, **overrides: Any) -> Submission:
    """Return a submission that the gate accepts; `**{"plan.batch.micro_batch": 8}` replaces what a test cares about."""
    return Submission.model_validate_json(json.dumps(make_content(steps, **overrides)))


def bare_submission(steps: int = 130, **overrides: Any) -> Submission:
    """Return a submission that is valid by its schema, and plain: no gates, telemetry or probe."""
    return Submission.model_validate_json(json.dumps(bare_content(steps, **overrides)))


def make_published(**overrides: Any) -> PublishedResult:
    """Return a published result with one claim."""
    content = {
        "id": "900-001",
        "source": "900",
        "section": "table 1",
        "origin": {"kind": "document"},
        "labels": {"model": "Llama 3.1 8B", "accelerator": "H100"},
        "conditions": {"model": "llama-3.1-8b", "method": "lora", "accelerator": "nvidia-h100-80gb-sxm", "accelerator_count": 1},
        "claims": {"train_loss": {"value": 1.5, "printed": "1.5"}},
        "status": "ok",
    }
    return PublishedResult.model_validate_json(json.dumps(with_overrides(content, overrides)))


FACT_FOLDERS = ("accelerators", "known", "workloads", "prices")
FEW_MODELS = {*(card.model for card in FACTS.workloads.values()), "llama-3.2-3b", "llama-3.1-405b", "llama-3.3-70b"}
"""Models of a temporary checkout: those of workload cards and of the documents that tests collect. A command checks, or plans for, each of them."""


def copy_data(root: Path, *folders: str) -> Path:
    """Copy facts, of models a few, and further folders of data, into a new checkout without records, and return its folder."""
    for folder in (*FACT_FOLDERS, *folders):
        shutil.copytree(CHECKOUT / "data" / folder, root / "data" / folder)
    shutil.copy(CHECKOUT / "data" / "support.json", root / "data" / "support.json")
    (root / "data" / "models").mkdir()
    for key in FEW_MODELS:
        shutil.copy(CHECKOUT / "data" / "models" / f"{key}.toml", root / "data" / "models")
    return root


def link_facts(data: Path, *left_out: str) -> None:
    """Link the facts of this checkout, of models a few, into a new folder."""
    (data / "models").mkdir(parents=True)
    for facts in (CHECKOUT / "data").iterdir():
        if facts.name not in {"converted", "models", "published", *left_out}:
            (data / facts.name).symlink_to(facts)
    for key in FEW_MODELS:
        (data / "models" / f"{key}.toml").symlink_to(CHECKOUT / "data" / "models" / f"{key}.toml")


@cache
def calibration_of_checkout() -> Calibration:
    """Return the calibration rows of this checkout, computed once."""
    evidence = load_evidence(CHECKOUT, FACTS)
    return calibrate(evidence, audit(evidence))


@cache
def fit_of_checkout() -> Fit:
    """Return the fit to these rows."""
    return fit(calibration_of_checkout().rows)


def assert_golden(golden: Path, shown: str) -> None:
    """Compare a text with a file, which UPDATE_GOLDEN=1 writes. Lists of known names are left out: they grow with the data."""
    shown = re.sub(r"none of the \d+ known", "none of the known", re.sub(r"\bknown: .*", "known: ...", shown))
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(shown, encoding="utf-8")
    assert shown == golden.read_text(encoding="utf-8"), "run again with UPDATE_GOLDEN=1 if the difference is meant"


def run_id(number: int) -> str:
    return f"{number:032x}"


def save(root: Path, submission: Submission) -> Path:
    """Write a submission where it belongs in a checkout and return its path."""
    content = canonical_json(submission)
    path = root / "submissions" / submission.plan.workload / submission_name(submission, content_id(content))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@dataclass(frozen=True)
class Errors:
    """Errors of held-out rows with a prediction, as shares."""

    median: float
    worst: float
    coverage: float


def summarise(rows: Iterable[HeldOut]) -> Errors | None:
    """Return the errors of held-out rows; None if none of them has a prediction."""
    predicted = [row for row in rows if row.error is not None]
    errors = [abs(row.error or 0.0) for row in predicted]
    return Errors(median(errors), max(errors), mean(bool(row.covered) for row in predicted)) if errors else None


def rate_of(fitted: Fit, config: Combination) -> Range | Missing:
    """Return the predicted tokens per second of all devices, or the reason why there is none."""
    shape = config.shape
    reason = unmeasured(fitted.known, shape.model, shape.method, config.accelerator, shape.sequence_length)
    estimate = Missing(reason) if reason else predict(fitted.effects, config)
    return estimate if isinstance(estimate, Missing) else interval_of(estimate, config.devices)
