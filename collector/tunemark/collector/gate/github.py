"""What GitHub shows of a check: annotations, the job summary, and the comment on a pull request.

Only the standard library is used, so that the workflow that comments installs nothing: `python -m tunemark.collector.gate.github
REPORT` prints the comment. A pull request can bring a changed workflow and so write any report, so nothing in it is trusted: every
text is cut and shown as inline code, and everything else is ignored.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunemark.schema.safe_text import markdown, shortened, workflow_data, workflow_property

LARGEST_REPORT_BYTES = 512 * 1024
LARGEST_COMMENT = 60_000
"""Characters; GitHub refuses more than 65,536."""
LONGEST_TEXT = 300  # Characters: a choice, three lines of a comment.
MOST_ROWS = 50  # A choice: a comment of 50 rows is still read.
MARK = "<!-- tunemark: result of the check -->"
"""First line of the comment, by which the next one replaces it."""
VERDICTS = {
    "accepted": "**Accepted.** All submissions passed; a maintainer merges them.",
    "refused": "**Refused.** Fix the problems below and push again.",
    "nothing to check": "**Nothing to check.** The branch changes no file.",
    "needs a maintainer": "**Needs a maintainer.** This is more than new submissions, so a person decides.",
}


def annotation(file: str, title: str, message: str, *, level: str = "error") -> str:
    """Return the line that makes GitHub show a message at a file."""
    place, heading = (workflow_property(shortened(text, LONGEST_TEXT)) for text in (file, title))
    return f"::{level} file={place},line=1,title={heading}::{workflow_data(message)}"


def report_markdown(report: Mapping[str, Any]) -> str:
    """Return the report on a pull request as Markdown. The report may be anything that JSON can express."""
    lines = [
        MARK,
        "## Check of the submissions",
        "",
        VERDICTS.get(str(report.get("verdict")), "**No verdict.** The report cannot be read."),
    ]
    for entry in _first(report.get("files")):
        lines += ["", *_file_lines(entry)]
    for kind, heading, columns in (
        ("refused", "What to fix", {"path": "file", "field": "field", "value": "value", "fix": "what to fix"}),
        ("maintainer", "Changes that a maintainer decides on", {"path": "path", "reason": "reason"}),
    ):
        entries = _list(report.get(kind))
        rows = [f"| {' | '.join(_text(entry.get(name)) for name in columns)} |" for entry in _first(entries)]
        if rows:
            lines += ["", f"### {heading}", "", f"| {' | '.join(columns.values())} |", "|---" * len(columns) + "|", *rows]
            lines += [f"\nand {len(entries) - len(rows):,} more"] if len(entries) > len(rows) else []
    compared = report.get("compared_with")
    if isinstance(compared, int) and not isinstance(compared, bool):
        lines += ["", f"Compared with {compared:,} accepted submissions. `tunemark validate` runs the same checks of a file."]
    text = "\n".join(lines)
    # A cut within inline code would leave it open, so whole lines are left out.
    whole = text[:LARGEST_COMMENT].rpartition("\n")[0]
    return text if len(text) <= LARGEST_COMMENT else f"{whole}\n\nThe rest is in the log of the check.\n"


def _file_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    yield f"### {_text(entry.get('path'))}"
    yield ""
    devices = f"{_number(entry.get('devices'), '.0f')} x {_text(entry.get('device'))}"
    yield f"- result {_text(entry.get('id'))}: {_text(entry.get('workload'))} on {devices}, status {_text(entry.get('status'))}, {_number(entry.get('tokens_per_s'), ',.4g')} tokens/s"
    if entry.get("note"):
        yield f"- {_text(entry['note'])}"
    for note in _list(entry.get("notes"))[:MOST_ROWS]:
        yield f"- note: {_text(note)}"


def _text(value: object) -> str:
    return markdown(shortened(value, LONGEST_TEXT)) if isinstance(value, str) else "(none)"


def _number(value: object, form: str) -> str:
    return format(float(value), form) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15 else "(none)"  # noqa: PLR2004


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _first(value: object) -> list[Mapping[str, Any]]:
    return [entry for entry in _list(value)[:MOST_ROWS] if isinstance(entry, Mapping)]


def read_report(path: Path) -> Mapping[str, Any]:
    """Return the report in an untrusted file; an empty one for anything else."""
    try:
        if path.is_symlink():
            return {}
        with path.open("rb") as file:
            content = file.read(LARGEST_REPORT_BYTES + 1)
        report = json.loads(content) if len(content) <= LARGEST_REPORT_BYTES else {}
    except (OSError, ValueError, RecursionError):
        report = {}
    return report if isinstance(report, dict) else {}


if __name__ == "__main__":
    sys.stdout.write(report_markdown(read_report(Path(sys.argv[1]))))
