"""The run that a whole job is predicted from, and what its machines cost."""

from collections.abc import Sequence
from pathlib import Path

from tunemark.harness.studies.identity import read_submission
from tunemark.schema.errors import TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import usd as dollars
from tunemark.schema.records.submission import Submission
from tunemark.schema.statistics.job_prediction import price_of, stranger


def read_run(path: Path) -> Submission:
    """Return the submission of a file; raises TunemarkError where it holds another record."""
    record = read_submission(path, path.read_bytes())
    if record is None:
        raise TunemarkError("submission", str(path), "is another record; give the file that `tunemark run` wrote")
    return record


def read_runs(paths: Sequence[Path]) -> list[Submission]:
    """Return the submissions of repeats; raises TunemarkError for a file that is none of the first one."""
    runs = [read_run(path) for path in paths]
    found = stranger(runs)
    if found is not None:
        which, why = found
        raise TunemarkError("submission", paths[which].name, why)
    return runs


def hourly(run: Submission, facts: FactBase, given_usd: float | None) -> tuple[float | None, str]:
    """Return US dollars an hour of all machines of a run, and where that price is from or why there is none."""
    if given_usd is not None:
        return given_usd, f"{dollars(given_usd)} an hour, as given"
    device = run.plan.device
    if device.accelerator is None:
        return None, "none: the device is not in data/accelerators; give --usd-per-hour"
    row = price_of(facts.prices, device.accelerator, device.count // device.nodes)
    if row is None:
        return None, f"none: no on-demand price of {device.count // device.nodes} x {device.accelerator}; give --usd-per-hour"
    machines = f"{device.nodes} x " if device.nodes > 1 else ""
    place = f"{row.provider} {row.instance}{f' in {row.region}' if row.region else ''}"
    return row.usd_per_hour * device.nodes, f"{machines}{dollars(row.usd_per_hour)} an hour, {place}, of {row.effective_on.isoformat()}"
