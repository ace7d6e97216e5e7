"""Measure the runs of gpu_campaign.toml on a GPU machine within half an hour: one stage per command, with results written after each run.

    python3 benchmarks/carry_wheels.py                            # here, once: what the machine lacks, into .wheels/
    python3 benchmarks/gpu_campaign.py STAGE [STAGE ..]           # there, in the root of the copy, with .wheels and .campaign carried
    python benchmarks/gpu_campaign.py --list | --rehearse

Each stage fits a command of ten minutes. A run is skipped if an earlier command of the campaign finished it. The folder of results (`--out`, by default $OUT) gets `submissions.tar.gz`, `campaign.json`,
`table.md` and `log.txt` after every run; put them into `.campaign/`, which git ignores, and carry it to the next command.
`tar xzf .campaign/submissions.tar.gz` in the root adds the submissions to the checkout. `--rehearse` runs all stages with tiny cards.
"""

import argparse
import contextlib
import functools
import importlib.util
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tunemark.schema.facts.fact_base import FactBase
    from tunemark.schema.records.submission import Submission

ROOT = Path(__file__).parents[1]
WHEELS, CARRIED = ROOT / ".wheels", ROOT / ".campaign"
BUILT_FROM = ROOT / "harness" / "tunemark" / "harness" / "built_from.json"
"""File with the commit that records state where there is no checkout, as in a wheel."""
SITE = Path("/tmp/tunemark-site")  # noqa: S108 - a machine with no other users
ISOLATED_PACKAGES = {"torchao": "fp8_training="}
"""Carried package -> prefix of the setting that needs it. Other runs must not find it: the machine's peft or transformers may not support
its version."""
PREPARED, STARTED = "TUNEMARK_CAMPAIGN", "TUNEMARK_CAMPAIGN_STARTED_S"
"""Environment variables: the checkout whose packages are importable, and the monotonic time in seconds at which the command
started."""
ROOMS = ("schema", "harness", "collector", "site")
ARCHIVE, STATE, TABLE, LOG = "submissions.tar.gz", "campaign.json", "table.md", "log.txt"
LIMIT_MINUTES = 9.0
"""Limit of a command: ten minutes minus the time to stop the last run and pack the results."""
LEAST_S = 15.0
"""Time left under which no run is started."""
GRACE_S = 40.0
"""Time for a stopped run to write its record."""
ENDINGS = {0: "done", 4: "unsupported", 6: "untrustworthy"}
"""Meaning of the exit codes of `tunemark`; an untrustworthy run has a record, such as of too few steps."""
FINISHED = ("done", "untrustworthy")
"""Endings of runs that a later command skips."""
FAILED = ("failed", "limit")
FAILED_REHEARSAL = (*FAILED, "unsupported", "no time left")
"""A rehearsal shows that each command runs, so it fails if one did not. On a GPU a package may be missing by design."""


@dataclass(frozen=True)
class Run:
    """A run of the campaign: a command of `tunemark` for a workload, or a benchmark of this folder."""

    name: str
    command: str
    """`run`, `tune`, `frontier` or `sweep`, or the file name of a benchmark."""
    workload: str = ""
    """Key of the workload; empty for a benchmark."""
    minutes: float = 0.0
    set: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)
    anchor: str | None = None

    @property
    def is_benchmark(self) -> bool:
        """Return True for a benchmark of this folder, which writes no submission."""
        return self.command.endswith(".py")

    @property
    def words(self) -> list[str]:
        """Return the program and its arguments, as a reader would type them."""
        program = ["python", f"benchmarks/{self.command}"] if self.is_benchmark else ["tunemark", self.command, self.workload]
        return [*program, *(word for setting in self.set for word in ("--set", setting)), *self.args]

    def paths(self) -> list[str]:
        """Return the folders of packages that only this run imports."""
        return [str(SITE / name) for name, setting in ISOLATED_PACKAGES.items() if any(word.startswith(setting) for word in self.set)]


@dataclass
class Entry:
    """What became of a run."""

    name: str
    stage: str
    command: str
    version: str
    ended: str
    """`done`, `untrustworthy`, `unsupported`, `failed`, `limit` or `no time left`."""
    code: int | None = None
    seconds: float = 0.0
    said: str = ""
    """Its answer on standard output."""


def campaign() -> dict[str, Any]:
    """Return the content of gpu_campaign.toml."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def stages(content: dict[str, Any], *, rehearse: bool = False) -> dict[str, list[Run]]:
    """Return the runs of each stage, or tiny ones in their place."""
    made = {stage["name"]: [Run(**run) for run in stage["runs"]] for stage in content["stages"]}
    if not rehearse:
        return made
    return {name: [rehearsed(run, content["rehearsal"]) for run in runs] for name, runs in made.items()}


def rehearsed(run: Run, rules: dict[str, Any]) -> Run:
    """Return a run of the same command with a tiny card, few steps and short rows, packed if the card packs, without what only a GPU has."""
    if run.is_benchmark:
        return Run(run.name, run.command, minutes=rules["minutes"], args=rules["args"][run.command])
    kind = next((kind for kind in ("qlora", "lora", "bert") if kind in run.workload), "full")
    short, words = [], iter(run.args)
    for word in words:
        if word in rules["drop"]:
            next(words, None)
        else:
            short.append(word)
    rows = [] if kind == "bert" else rules["packed"] if facts().workload(run.workload).data.packing else rules["set"]
    settings = [*rows, *(rules["replace"].get(setting, setting) for setting in run.set)]
    return Run(run.name, run.command, rules["cards"][kind], rules["minutes"], settings, [*short, *rules["args"][run.command]], run.anchor)


@functools.cache
def facts() -> "FactBase":
    """Return the facts of the project."""
    from tunemark.schema.facts.fact_base import FactBase  # noqa: PLC0415 - importable only once prepared

    return FactBase.of_project()


# Prepare the machine


def prepare() -> None:
    """Make the packages importable, install the carried wheels that it lacks, and start again.

    In a copy whose git history does not have the carried commit, records state that commit, by the file in which an installed package has it.
    """
    if os.environ.get(PREPARED) == str(ROOT):
        return
    os.environ.setdefault(STARTED, str(time.monotonic()))
    wheels = sorted(WHEELS.glob("*.whl"))
    missing = importlib.util.find_spec("pydantic") is None
    if missing and not wheels:
        sys.exit("pydantic is missing; run benchmarks/carry_wheels.py where there is a network, and carry .wheels")
    for name in (None, *ISOLATED_PACKAGES):
        chosen = [
            each for each in wheels if name == next((alone for alone in ISOLATED_PACKAGES if each.name.startswith(f"{alone}-")), None)
        ]
        folder = SITE / (name or "all")
        if chosen and not folder.exists() and (missing if name is None else importlib.util.find_spec(name) is None):
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(folder)]
            subprocess.run([*pip, *map(str, chosen)], check=True)  # noqa: S603 - fixed arguments
    carried = WHEELS / BUILT_FROM.name
    if carried.exists() and not in_history(json.loads(carried.read_bytes())["commit"]):
        shutil.copyfile(carried, BUILT_FROM)
        # The files are newer than the history, so git is not asked.
        os.environ["GIT_DIR"] = os.devnull
    installed = [str(SITE / "all")] if (SITE / "all").exists() else []
    paths = [*(str(ROOT / room) for room in ROOMS), *installed, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "TUNEMARK_ROOT": str(ROOT), PREPARED: str(ROOT)}
    os.execv(sys.executable, [sys.executable, *sys.argv])  # noqa: S606 - this program again


def in_history(commit: str) -> bool:
    """Return True if HEAD of this checkout is a commit or a later one."""
    git = ["git", "-C", str(ROOT), "merge-base", "--is-ancestor", commit, "HEAD"]
    return shutil.which("git") is not None and subprocess.run(git, check=False, capture_output=True).returncode == 0  # noqa: S603 - fixed arguments


# Run


class Campaign:
    """Runs with their results in a working folder, copied to the folder of results after each."""

    def __init__(self, work: Path, out: Path, deadline_s: float) -> None:
        from tunemark.schema import VERSION  # noqa: PLC0415 - importable only once prepared

        self.work, self.out, self.deadline_s, self.version = work, out, deadline_s, VERSION
        self.entries: list[Entry] = []
        self.log = work / LOG
        work.mkdir(parents=True, exist_ok=True)
        out.mkdir(parents=True, exist_ok=True)
        if (CARRIED / ARCHIVE).exists():
            with tarfile.open(CARRIED / ARCHIVE) as archive:
                archive.extractall(work, filter="data")
        for state in (CARRIED / STATE, work / STATE):
            if state.exists():
                self.entries = [Entry(**entry) for entry in json.loads(state.read_text(encoding="utf-8"))]

    def stage(self, name: str, runs: Iterable[Run]) -> None:
        """Run a stage."""
        for run in runs:
            entry = self._run(name, run)
            self.entries = [*(old for old in self.entries if old.name != run.name), entry]
            print(f"{name}: {run.name}: {entry.ended}, {entry.seconds:.0f} s, {self.deadline_s - time.monotonic():.0f} s left", flush=True)
            self.write()

    def _run(self, stage: str, run: Run) -> Entry:
        command = " ".join(run.words)
        earlier = next((entry for entry in self.entries if entry.name == run.name and entry.command == command), None)
        if earlier and earlier.version == self.version and earlier.ended in FINISHED:
            return earlier
        entry = Entry(run.name, stage, command, self.version, "")
        left_s = self.deadline_s - time.monotonic()
        if left_s < LEAST_S:
            entry.ended = "no time left"
            return entry
        started_s, said = time.monotonic(), self.work / "said"
        with self.log.open("ab") as log, said.open("wb") as answer:
            log.write(f"\n=== {run.name}: {command}\n".encode())
            log.flush()
            words = run.words[1:] if run.is_benchmark else ["-m", *run.words, "--out", str(self.work / "submissions")]
            paths = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), *run.paths()])
            files = {"stdout": answer, "stderr": log, "stdin": subprocess.DEVNULL, "env": os.environ | {"PYTHONPATH": paths}}
            process = subprocess.Popen([sys.executable, *words], cwd=ROOT, start_new_session=True, **files)  # type: ignore[call-overload]  # noqa: S603
            entry.ended, entry.code = end_of(process, min(60 * run.minutes, left_s))
        entry.seconds, entry.said = round(time.monotonic() - started_s, 1), said.read_text(encoding="utf-8", errors="replace")
        return entry

    def write(self) -> None:
        """Write archive, state, table and log to the folder of results."""
        (self.work / STATE).write_text(json.dumps([asdict(entry) for entry in self.entries], indent=1), encoding="utf-8")
        records = list(read(self.work / "submissions"))
        (self.work / TABLE).write_text("\n".join(report(records, self.entries)) + "\n", encoding="utf-8")
        with tarfile.open(self.work / ARCHIVE, "w:gz") as archive:
            if (self.work / "submissions").exists():
                archive.add(self.work / "submissions", "submissions")
        if self.out.resolve() != self.work.resolve():
            for name in (ARCHIVE, STATE, TABLE, LOG):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(self.work / name, self.out / name)


def end_of(process: "subprocess.Popen[bytes]", limit_s: float) -> tuple[str, int | None]:
    """Wait for a run, and stop it at its limit, so that it still writes its record. Return its ending and its exit code."""
    for number, wait_s in ((None, limit_s), (signal.SIGINT, GRACE_S), (signal.SIGKILL, None)):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = process.wait(wait_s)
            return ("limit" if number is not None else ENDINGS.get(code, "failed")), code
    return "limit", None


# Results


def read(folder: Path) -> Iterator["Submission"]:
    """Yield the submissions of a folder, oldest first."""
    from tunemark.harness.studies.series import read_submission  # noqa: PLC0415 - importable only once prepared

    records = [read_submission(path, path.read_bytes()) for path in sorted(folder.rglob("*.json"))]
    yield from sorted((record for record in records if record is not None), key=lambda record: record.started_at)


def report(records: list["Submission"], entries: list[Entry]) -> Iterator[str]:
    """Yield the lines of the report: results beside anchors and goals, how each run ended, and answers of studies."""
    from tunemark.schema.vocabulary import TRIES  # noqa: PLC0415 - importable only once prepared

    content = campaign()
    anchors = {run.workload: content["anchors"][run.anchor] for runs in stages(content).values() for run in runs if run.anchor}
    header = ("workload", "division", "settings", "status", "steps", "tokens/s", "MFU", "HFU", "MAFU", "memory predicted", "measured")
    header = (*header, "difference", "J per 1k tokens", "s to first step", "published tokens/s", "goal tokens/s", "of the goal")
    yield from ("# Campaign", "", f"| {' | '.join(header)} |", f"|{'---|' * len(header)}")
    shown = [record for record in records if record.study is None or record.study.kind not in TRIES]
    for record in shown:
        yield f"| {' | '.join(row(record, anchors.get(record.plan.workload), goal_of(record, content['goals'])))} |"
    tries = len(records) - len(shown)
    yield from ("", f"{tries} short tries of studies are not shown." if tries else "", "", "## Published figures", "")
    for anchor in content["anchors"].values():
        yield f"- {anchor['tokens_per_s']:,} tokens/s, {anchor['device']}: {anchor['conditions']} ({anchor['source']})"
    yield from ("", "## Runs", "", "| run | command | ended | exit code | seconds |", "|---|---|---|---|---|")
    for entry in entries:
        yield f"| {entry.name} | `{entry.command}` | {entry.ended} | {'' if entry.code is None else entry.code} | {entry.seconds:.0f} |"
    for entry in entries:
        if entry.said.strip():
            yield from ("", f"### {entry.name}", "", "```", entry.said.rstrip(), "```")


def goal_of(record: "Submission", goals: list[dict[str, Any]]) -> int | None:
    """Return the last matching goal in tokens per second, or None.

    A goal matches if accelerator and workload are the same and the run has its settings. Runs on several devices have no goal, nor do runs at another
    global batch than the card's, unless the goal sets `any_batch`.
    """
    plan, run_settings = record.plan, {(override.field, override.run) for override in record.overrides}
    if plan.device.count > 1:
        return None
    rows = facts().workload(plan.workload).batch
    has_card_batch = plan.batch.global_batch == rows.micro_batch * rows.gradient_accumulation
    fitting = [goal for goal in goals if (goal["accelerator"], goal["workload"]) == (plan.device.accelerator, plan.workload)]
    fitting = [
        goal for goal in fitting if set(goal.get("settings", {}).items()) <= run_settings and (has_card_batch or goal.get("any_batch"))
    ]
    return fitting[-1]["tokens_per_s"] if fitting else None


def row(record: "Submission", anchor: dict[str, Any] | None, goal: int | None) -> Iterator[str]:
    """Yield the cells of a result. The time to the first step is from the start of the process to the end of that step."""
    from tunemark.schema import formats  # noqa: PLC0415 - importable only once prepared
    from tunemark.schema.derive import derive  # noqa: PLC0415
    from tunemark.schema.physics.memory import estimate_memory  # noqa: PLC0415
    from tunemark.schema.physics.training_shape import shape_of_plan, shape_problem  # noqa: PLC0415
    from tunemark.schema.physics.utilisation import physics  # noqa: PLC0415

    plan, derived = record.plan, derive(record)
    card = facts().model(plan.model.key)
    known = physics(record, derived, card, facts().accelerators.get(plan.device.accelerator or "")).figures
    predicted = None if shape_problem(plan, card) else estimate_memory(shape_of_plan(plan, card)).peak_allocated
    rate, settings = derived.tokens_per_s, ", ".join(f"{override.field}={override.run}" for override in record.overrides)
    # The prediction is of the device's allocator, not of a process on the host.
    counted = predicted and record.memory.device_allocated.peak_bytes

    def cell(value: float | None, form: str) -> str:
        return formats.MISSING if value is None else form.format(value)

    yield from (plan.workload, record.division.value, settings or "the card's", record.outcome.status.value)
    yield from (f"{derived.window.steps if derived.window else 0}", cell(rate and rate.value, "{:,.0f}"))
    yield from (cell(known[name].value, "{:.1%}") for name in ("mfu", "hfu", "mafu"))
    yield from (formats.gib(size) if size else formats.MISSING for size in (predicted, derived.peak_memory.peak_bytes))
    yield cell(predicted / counted - 1 if predicted and counted else None, "{:+.1%}")
    yield cell(known["energy_per_1k_tokens_j"].value, "{:,.1f}")
    yield cell(next(iter(record.trace.completed_at_s), None), "{:,.1f}")
    yield f"{anchor['tokens_per_s']:,} ({anchor['device']})" if anchor else ""
    yield from (f"{goal:,}" if goal else "", f"{rate.value / goal:.0%}" if goal and rate else "")


def main() -> int:
    """Run the stages that were asked for. Return 1 if a run failed or reached its limit, or if a rehearsed one did not run."""
    declared = stages(campaign())
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("stages", nargs="*", metavar="STAGE", help=", ".join(declared))
    parser.add_argument("--out", type=Path, default=None, help="folder of results; default: $OUT, else the working folder")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "campaign", help="working folder")
    parser.add_argument("--minutes", type=float, default=LIMIT_MINUTES, help="limit of this command")
    parser.add_argument("--rehearse", action="store_true", help="run tiny cards in place of all others")
    parser.add_argument("--only", action="append", help="only the run of this name; several may be given")
    parser.add_argument("--list", action="store_true", help="list stages and runs")
    asked = parser.parse_args()
    unknown = [name for name in asked.stages if name not in declared]
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; stages: {', '.join(declared)}")
    if asked.list:
        for name, runs in declared.items():
            print(f"{name}: at most {sum(run.minutes for run in runs):g} min")
            for run in runs:
                print(f"  {run.name}: {' '.join(run.words)} ({run.minutes:g} min)")
        return 0
    prepare()
    out = asked.out or Path(os.environ.get("OUT", asked.work))
    made = Campaign(asked.work, out, float(os.environ.get(STARTED, time.monotonic())) + 60 * asked.minutes)
    planned = stages(campaign(), rehearse=asked.rehearse)
    started_s = time.monotonic()
    for name in asked.stages or planned:
        made.stage(name, [run for run in planned[name] if not asked.only or run.name in asked.only])
    print(f"{time.monotonic() - started_s:.0f} s; results in {out}")
    return int(any(entry.ended in (FAILED_REHEARSAL if asked.rehearse else FAILED) for entry in made.entries))


if __name__ == "__main__":
    # Results are read while it runs, and the machine may end it at any time.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    sys.exit(main())
