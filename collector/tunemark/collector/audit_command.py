"""The command `audit`: what the rules find, with the calculation of each finding."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tunemark.collector.commands.terminal import AsJson, print_json, print_table, say
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.files import project_root
from tunemark.schema.vocabulary import AuditVerdict

if TYPE_CHECKING:
    from tunemark.collector.audit.evidence import Base
    from tunemark.schema.findings import Finding

# What it needs is imported when it is called, so that --help is instant.
# ruff: noqa: PLC0415

WIDTH = 80
SHOWN_RECORDS = 6

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", context_settings={"help_option_names": ["-h", "--help"]}
)


@app.callback()
def collector() -> None:
    """Audit what is claimed."""


@app.command()
def audit(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FILES]...", help="Records to audit among all others; all records when left out.", show_default=False),
    ] = None,
    *,
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source",
            help="A document (`004`) `measured` or a round such as `mlperf-v5.1`; may be given several times.",
            show_default=False,
        ),
    ] = None,
    rule: Annotated[list[str] | None, typer.Option("--rule", help="A rule; may be given several times.", show_default=False)] = None,
    verdict: Annotated[
        list[str] | None,
        typer.Option(
            "--verdict", help="impossible, inconsistent, suspicious or ambiguous; may be given several times.", show_default=False
        ),
    ] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules and why each is one; nothing is audited.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check claims against physics, arithmetic, catalogues and each other: each finding with its calculation.

    Published results, statements of documents and measured submissions alike. A finding names its rule, its verdict,
    the records it concerns, what they claim, and the calculation written out. What is not found to be wrong is not
    said to be right.

    Exit codes: 0 audited, whatever was found; 2 an unknown rule, verdict, source or file; 3 a file is no record.

    Examples
    --------
    - `tunemark audit --source 004`

    - `tunemark audit --verdict impossible --json`

    - `tunemark audit data/published/003/003-002.json`

    - `tunemark audit --rules`
    """
    from tunemark.collector.audit.engine import audit as run_audit
    from tunemark.collector.audit.engine import chosen
    from tunemark.collector.audit.registry import RULES

    if rules:
        _print_rules(as_json=as_json)
        return
    wanted_rules = [_known("--rule", name, [one.id for one in RULES]) for name in rule or ()]
    wanted = [AuditVerdict(_known("--verdict", word.lower(), list(AuditVerdict))) for word in verdict or ()]
    base, ids = _base(paths or [])
    known_sources = sorted({run.source for run in base.runs} | set(base.document_of))
    sources = [_known("--source", name, known_sources) for name in source or ()]
    found = chosen(run_audit(base), rules=wanted_rules, verdicts=wanted, records=ids or _of_sources(base, sources))
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    for one in found:
        _print(one)
    _summary(base, found)


def _base(paths: list[Path]) -> "tuple[Base, list[str]]":
    from tunemark.collector.audit.loaded import base_of, with_files
    from tunemark.collector.gate.read import named_records

    base = base_of(project_root())
    return with_files(base, named_records(paths).files) if paths else (base, [])


def _of_sources(base: "Base", sources: list[str]) -> list[str]:
    """Return the ids of all results and statements of sources."""
    results = [run.id for run in base.runs if run.source in sources]
    return [*results, *(statement for statement in base.statements if statement[:3] in sources)]


def _known(option: str, word: str, known: list[str]) -> str:
    if word in known:
        return word
    raise TunemarkError(option, word, did_you_mean(word, known))


def _print(finding: "Finding") -> None:
    shown = ", ".join(finding.records[:SHOWN_RECORDS])
    more = f" and {len(finding.records) - SHOWN_RECORDS} more" if len(finding.records) > SHOWN_RECORDS else ""
    _wrapped("", f"{finding.verdict.value.upper()}  {finding.rule}  {shown}{more}")
    _wrapped("  claim  ", finding.claim)
    _wrapped("  sum    ", finding.calculation)
    typer.echo("")


def _wrapped(head: str, text: str) -> None:
    indent = " " * (len(head) or 2)
    for line in textwrap.wrap(text, WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False) or [head]:
        typer.echo(line)


def _summary(base: "Base", found: "tuple[Finding, ...]") -> None:
    counts = {verdict: sum(one.verdict is verdict for one in found) for verdict in AuditVerdict}
    about = len({one.records[0] for one in found})
    say(
        f"{len(base.runs)} results and {len(base.statements)} statements audited: {len(found)} findings about {about} of them ("
        + ", ".join(f"{number} {verdict.value}" for verdict, number in counts.items())
        + ")"
    )


def _print_rules(*, as_json: bool) -> None:
    from tunemark.collector.audit.registry import RULES

    if as_json:
        print_json(
            [{"id": one.id, "family": one.family, "title": one.title, "why": one.why, "verdicts": list(one.verdicts)} for one in RULES]
        )
        return
    print_table(["rule", "family", "looks for"], [(one.id, one.family, one.title) for one in RULES])
