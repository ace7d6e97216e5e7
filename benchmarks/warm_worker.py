"""Compare tries in a warm worker with the same tries in fresh processes: peak memory, step time, losses, and time per try.

    python benchmarks/warm_worker.py [WORKLOAD] [--rounds N] [--steps N] [--set FIELD=VALUE] [--json]
    python benchmarks/warm_worker.py [WORKLOAD] --frontier GIB [--set FIELD=VALUE] [--json]

Rounds are interleaved: warm fresh, fresh warm, .. Ratios are of medians over the rounds; the fastest step shows the undisturbed machine
where other work runs beside. `--frontier` searches for the largest micro-batch in so much host memory instead, once with warm tries and
once with fresh ones only. Nothing is kept.
"""

import argparse
import json
import tempfile
import time
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from tunemark.harness.plan.options import Options
from tunemark.harness.studies.frontier import Frontier, FrontierQuestion
from tunemark.harness.studies.series import Bench
from tunemark.schema.derive import derive
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.formats import GIB
from tunemark.schema.records.trace import Study

FIRST = 2
"""Steps that are left out: the first allocate and compile."""


def frontier(facts: FactBase, asked: argparse.Namespace, *, warm: bool) -> dict[str, Any]:
    """Return the edge that a search finds, its peak memory, the number of tries, and the seconds that it takes."""
    options = Options(overrides=tuple(asked.overrides))
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench.here(facts, options.machine(), Path(folder))
        search = Frontier.of(
            asked.workload,
            options,
            bench if warm else replace(bench, trier=None),
            FrontierQuestion(limit_bytes=int(asked.frontier * GIB), within=0.05),
        )
        started_s = time.monotonic()
        ended = search.search()
        seconds = time.monotonic() - started_s
        bench.close()
    (edge,) = search.edges
    return {"seconds": round(seconds, 1), "ended": ended, **asdict(edge)}


def main() -> None:
    """Run the rounds and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("workload", nargs="?", default="smoke-lora")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--frontier", type=float, metavar="GIB", help="compare two searches for the largest micro-batch instead")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    facts = FactBase.of_project()
    if asked.frontier:
        found = {name: frontier(facts, asked, warm=name == "warm") for name in ("warm", "fresh")}
        print(json.dumps(found, indent=None if asked.json else 1))
        return
    options = Options(overrides=tuple(asked.overrides), max_steps=asked.steps, probe=False, gates=False)
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    losses = set()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench.here(facts, options.machine(), Path(folder))
        resolved = bench.plan(asked.workload, options)
        study = Study(kind="frontier", study_id="0" * 12, point="try", position=1, settings_sha256="0" * 64)
        runners = {"warm": bench.trier or bench.runner, "fresh": bench.runner}
        runners["warm"](resolved, study)  # starts the warm process
        for number in range(asked.rounds):
            for name in list(runners)[:: 1 if number % 2 == 0 else -1]:
                started_s = time.monotonic()
                submission, _ = runners[name](resolved, study)
                figures["seconds per try"][name].append(time.monotonic() - started_s)
                times_s = submission.trace.step_times_s[FIRST:]
                figures["step time, s"][name].append(median(times_s))
                figures["fastest step, s"][name].append(min(times_s))
                figures["peak memory, bytes"][name].append(float(derive(submission).peak_memory.peak_bytes or 0))
                losses.add(submission.trace.loss)
        bench.close()
    medians = {figure: {name: median(values) for name, values in arms.items()} for figure, arms in figures.items()}
    ratios = {figure: arms["warm"] / arms["fresh"] for figure, arms in medians.items()}
    if asked.json:
        print(
            json.dumps(
                {"rounds": asked.rounds, "medians": medians, "warm / fresh": ratios, "same losses": len(losses) == 1, "all": figures}
            )
        )
        return
    for figure, arms in medians.items():
        print(f"{figure:20} warm {arms['warm']:14,.4f}  fresh {arms['fresh']:14,.4f}  warm / fresh {ratios[figure]:.4f}")
    print(f"the losses of all runs are {'equal' if len(losses) == 1 else 'not equal'}")


if __name__ == "__main__":
    main()
