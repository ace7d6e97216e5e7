"""The commands `validate` and `check`: check files, or a pull request as data only."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tunemark.collector.commands.options import option
from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root
from tunemark.schema.formats import counted
from tunemark.schema.records.reading import Problem
from tunemark.schema.safe_text import terminal
from tunemark.schema.vocabulary import AuditVerdict
from tunemark.terminal import AsJson, print_json, say

if TYPE_CHECKING:
    from tunemark.collector.gate.check import Validation

# Modules that need numpy are imported by the command, so that --help stays fast.
# ruff: noqa: PLC0415

REGULAR = "submissions/ holds regular files of submissions only, which are never changed or removed once they are committed"


def validate(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files or folders. Default: `submissions/` and all of `data/`.")] = None,
    *,
    pull_request: Annotated[str | None, option("--pull-request", "Check what these commits add instead.", metavar="BASE..HEAD")] = None,
    out: Annotated[Path | None, option("--out", "With --pull-request, write the report as JSON.")] = None,
    github: Annotated[bool, option("--github", "With --pull-request, print annotations for GitHub and write the job's summary.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check submissions, published and converted results, and the facts of data/.

    Records: schema, rules between fields, re-derivation of the headline numbers, identity of people and machines, cards, file name.
    Facts: cards of accelerators, models and workloads, the price book, known facts, the support matrix and documents, compared with physics
    and with each other. All files are checked. Each problem is one line, `file: field: value: fix`, with the line number for a fact.

    A change in `data/` since the measurement is a problem of a new submission, and a note on one that git already tracks.

    With --pull-request, run it in a checkout of the base: its code, facts and results judge. The head is read from git as data and never
    checked out. A pull request may only add submissions; any other change needs a maintainer, and a change of a submission is refused.

    Exit codes: 0 all valid, or for a maintainer; 2 no such path or commit, or nothing to check in it; 3 a file is invalid.

    Examples
    --------
    - `tunemark validate`
    - `tunemark validate submissions/smoke-lora/ --json`
    - `tunemark validate data/prices/prices.csv`
    - `tunemark validate --pull-request main..BRANCH`
    """
    if pull_request is not None:
        _pull_request(pull_request, out, github=github, as_json=as_json)
    if github or out:
        raise TunemarkError("--github" if github else "--out", "", "is for --pull-request; leave it out, or add --pull-request BASE..HEAD")
    _check(paths, strict=False, as_json=as_json)


def check(paths: Annotated[list[Path], typer.Argument(help="Records, or folders.", metavar="FILE...")], *, as_json: AsJson = False) -> None:
    """Validate and audit the figures that you publish, as a pre-commit hook or in CI.

    Records are JSON files: submissions, and results that `tunemark import table` or `import log --out` wrote. For a figure in words there is `tunemark audit "TEXT"`.
    Anything else in a folder `submissions/`, and a change of a submission that git tracks, is refused too.

    Exit codes: 0 valid and without contradiction; 2 no such path, or no record in it; 3 a record is invalid, or a figure is impossible or inconsistent.

    Examples
    --------
    - `tunemark check results/`
    """
    _check(paths, strict=True, as_json=as_json)


def _check(paths: list[Path] | None, *, strict: bool, as_json: bool) -> NoReturn:
    """Validate records and facts, with `strict` also audit them, and print what is wrong."""
    from tunemark.collector.commands.audit import findings_on, print_finding
    from tunemark.collector.gate.fact_files import is_fact_file

    done = _validated(paths, strict=strict)
    audited = [path for path in paths or [] if strict and not done.problems and not is_fact_file(path)]
    findings = findings_on(audited) if audited else []
    wrong = [each for each in findings if each.verdict in {AuditVerdict.IMPOSSIBLE, AuditVerdict.INCONSISTENT}]
    for file, note in done.notes:
        say(f"{file}: note: {note}")
    if as_json:
        problems = [{"file": file} | asdict(problem) for file, problem in done.problems]
        found = {"problems": problems, "findings": list(map(asdict, findings))}
        print_json({"files": done.files, "facts": done.facts, "invalid": done.invalid, **found})
    else:
        for file, problem in done.problems:
            say(f"{file}: {problem}")
        for finding in findings:
            print_finding(finding)
        if not done.judged:
            say("records were not checked; correct the facts first")
        if not done.files and not paths:
            say(f"no records under {project_root()}; `tunemark run` writes them to submissions/")
        facts_too = f" and {counted(done.facts, 'fact file')}" if done.facts else ""
        contradictions = f", {counted(len(wrong), 'contradiction')}" if strict and not done.problems else ""
        typer.echo(f"{counted(done.files, 'record')}{facts_too}, {done.invalid} invalid{contradictions}")
    raise typer.Exit(Exit.INVALID if done.problems or wrong else Exit.OK if done.files or done.facts else Exit.USAGE)


def _validated(paths: list[Path] | None, *, strict: bool) -> "Validation":
    """Check the files of some paths, or all of them."""
    from tunemark.collector.gate.check import validate_all
    from tunemark.collector.gate.cross_file_checks import changed_submissions
    from tunemark.collector.gate.fact_files import fact_files
    from tunemark.collector.gate.read import CONVERTED, PUBLISHED, SUBMISSIONS, find_records, named_records, shown_path

    root = project_root()
    cards = fact_files(paths or [root / "data"])
    folders = [folder for name in (SUBMISSIONS, PUBLISHED, CONVERTED) if (folder := root / name).is_dir()]
    records = named_records(paths, cards) if paths else find_records(folders)
    refused = [(path, reason) for path, reason in (*records.ignored, *records.unusual) if strict and SUBMISSIONS in path.absolute().parts]
    for path, reason in records.ignored:
        if (path, reason) not in refused:
            say(f"ignored {shown_path(path, root)}: {reason}")
    done = validate_all(records.files, root, FactBase.of_root(root), cards)
    done.problems.extend((shown_path(path, root), Problem("file", reason, REGULAR)) for path, reason in refused)
    if strict:
        done.problems.extend((file, Problem("file", "changed", REGULAR)) for file in changed_submissions(root))
    return done


def _pull_request(commits: str, out: Path | None, *, github: bool, as_json: bool) -> NoReturn:
    """Check the submissions that a pull request adds, and show where each result ranks."""
    from tunemark.collector.commands.audit import remarks_on
    from tunemark.collector.gate.github import annotation, report_markdown
    from tunemark.collector.gate.pull_request import check, summary
    from tunemark.collector.importers.import_io import write_out

    root = project_root()
    base, dots, head = commits.partition("..")
    if not (base and dots and head):
        raise TunemarkError("--pull-request", commits, "give the commits of base and head as BASE..HEAD")
    report = check(root, base, head, FactBase.of_root(root), remarks_on)
    if out is not None:
        write_out(out, (json.dumps(report, indent=1, sort_keys=True) + "\n").encode())
    if github:
        for problem in report["refused"]:
            typer.echo(annotation(problem["path"], problem["field"], ": ".join(filter(None, (problem["value"], problem["fix"])))))
        for change in report["maintainer"]:
            typer.echo(annotation(change["path"], "needs a maintainer", change["reason"], level="notice"))
        if summary_file := os.environ.get("GITHUB_STEP_SUMMARY"):
            with Path(summary_file).open("a", encoding="utf-8") as file:
                file.write(f"{report_markdown(report)}\n")
    if as_json:
        print_json(report)
    else:
        _print_report(report)
        typer.echo(summary(report))
    raise typer.Exit(Exit.INVALID if report["verdict"] == "refused" else Exit.OK)


def _print_report(report: dict[str, Any]) -> None:
    for problem in report["refused"]:
        say(terminal(": ".join(filter(None, map(problem.get, ("path", "field", "value", "fix"))))))
    for change in report["maintainer"]:
        say(terminal(f"{change['path']}: {change['reason']}"))
    for file in report["files"]:
        for text in (file["note"] or "accepted", *(f"note: {note}" for note in file["notes"])):
            typer.echo(terminal(f"{file['path']}: {text}"))
