"""The command `pull-request`: check the changes of a pull request as data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, print_json, say
from tunemark.schema.errors import Exit
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.files import project_root, write_atomically
from tunemark.schema.safe_text import terminal

# Modules that need numpy are imported by the command, so that --help stays fast.
# ruff: noqa: PLC0415


def pull_request(
    base: Annotated[str, typer.Argument(metavar="BASE", help="Commit or branch that the pull request goes to.")],
    head: Annotated[str, typer.Argument(metavar="HEAD", help="Commit of the pull request. It is never checked out.")],
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Write the report as JSON.", show_default=False)] = None,
    github: Annotated[bool, typer.Option("--github", help="Also print annotations for GitHub and write the summary of the job.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check the submissions that a pull request adds, and show where each result ranks.

    Run it in a checkout of the base: its code, facts and results judge. The content of the head is read from git as data. A pull
    request may only add submissions; any other change needs a maintainer, and a change of a submission is refused.

    Exit codes: 0 accepted or for a maintainer, 2 no such commit, 3 refused.

    Examples
    --------
    - `tunemark pull-request main submit-0123456789ab`

    - `tunemark pull-request main HEAD --json`

    - `tunemark pull-request "$BASE" "$HEAD" --github --out report.json`
    """
    from tunemark.collector.gate.github import annotation, append_summary, report_markdown
    from tunemark.collector.gate.pull_request import check, summary

    root = project_root()
    report = check(root, base, head, FactBase.of_root(root))
    if out is not None:
        write_atomically(out, (json.dumps(report, indent=1, sort_keys=True) + "\n").encode())
    if github:
        for problem in report["refused"]:
            typer.echo(annotation(problem["path"], problem["field"], _joined(problem["value"], problem["fix"])))
        for change in report["maintainer"]:
            typer.echo(annotation(change["path"], "needs a maintainer", change["reason"], level="notice"))
        append_summary(report_markdown(report))
    if as_json:
        print_json(report)
    else:
        for problem in report["refused"]:
            say(terminal(_joined(*(problem[name] for name in ("path", "field", "value", "fix")))))
        for change in report["maintainer"]:
            say(terminal(f"{change['path']}: {change['reason']}"))
        for file in report["files"]:
            ranks = [f"rank {table['rank']} of {table['results']}, {table['table']}" for table in file["tables"]]
            typer.echo(terminal(f"{file['path']}: {'; '.join(ranks) or file['note']}"))
        typer.echo(summary(report))
    raise typer.Exit(Exit.INVALID if report["verdict"] == "refused" else Exit.OK)


def _joined(*parts: str) -> str:
    return ": ".join(filter(None, parts))
