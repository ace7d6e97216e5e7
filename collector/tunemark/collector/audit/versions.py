"""Versions that exist, and that existed when the document says it was written."""

import re
from collections import defaultdict
from collections.abc import Iterator

from tunemark.collector.audit.evidence import Base
from tunemark.collector.audit.rule import IMPOSSIBLE, SUSPICIOUS, Found, Rule


def versions(base: Base) -> Iterator[Found]:
    """Yield versions that do not exist, and versions that are newer than the document says it is."""
    for (source, library, version), ids in sorted(_versions(base).items()):
        for series in base.facts.known.series:
            found = re.match(r"[A-Za-z ]*([0-9][0-9.]*)", version)
            if series.library == library and version.startswith(series.prefix) and found and found[1].rstrip(".") not in series.versions:
                yield Found(
                    SUSPICIOUS,
                    tuple(ids),
                    f"{library} {version}",
                    f"{series.prefix} has {', '.join(series.versions)}; {found[1]} does not exist ({series.source})",
                    {"version": version},
                )
        document, release = base.document_of.get(source), base.facts.known.released_on(library, version)
        if document and document.stated_on and release and release.released_on > document.stated_on:
            days = (release.released_on - document.stated_on).days
            yield Found(
                IMPOSSIBLE,
                tuple(ids),
                f"{library} {version} in a document of {document.stated_on}",
                f"{library} {version} came out on {release.released_on} ({release.source}), {days} days after the day the document states",
                {"released_on": release.released_on.isoformat(), "stated_on": document.stated_on.isoformat()},
            )


def _versions(base: Base) -> dict[tuple[str, str, str], list[str]]:
    used: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for run in base.runs:
        if not run.measured:
            for library, version in run.conditions.framework.items():
                used[run.source, library, version].append(run.id)
    for statement in base.statements.values():
        if {"library", "version"} <= set(statement.labels):
            used[statement.id[:3], statement.labels["library"], statement.labels["version"]].append(statement.id)
    return used


def before_the_architecture(base: Base) -> Iterator[Found]:
    """Yield results of a model with a version of a library that was released before the library knew the model's architecture."""
    for support in base.facts.known.architectures:
        used: dict[tuple[str, str], list[str]] = defaultdict(list)
        for run in base.runs:
            version = run.conditions.framework.get(support.library)
            if version and run.model is not None and run.model.family == support.family and not run.measured:
                used[version, run.model.name].append(run.id)
        for (version, model), ids in used.items():
            release = base.facts.known.released_on(support.library, version)
            if release and release.released_on < support.added_on:
                days = (support.added_on - release.released_on).days
                yield Found(
                    IMPOSSIBLE,
                    tuple(ids),
                    f"{model} with {support.library} {version}",
                    f"{support.library} {version} came out on {release.released_on} ({release.source}), {days} days before the architecture "
                    f"{support.family} was added on {support.added_on} ({support.source}): that version cannot load it",
                    {"released_on": release.released_on.isoformat(), "added_on": support.added_on.isoformat()},
                )


def document_dates(base: Base) -> Iterator[Found]:
    """Yield documents that say they are older than the repository they were written in."""
    for document in base.documents:
        if document.stated_on and document.committed_on and document.stated_on < document.committed_on:
            days = (document.committed_on - document.stated_on).days
            about = tuple(statement.id for statement in document.statements if "last_updated" in statement.labels)
            if not about:
                continue
            yield Found(
                SUSPICIOUS,
                about,
                f"dated {document.stated_on}",
                f"its repository first had it on {document.committed_on}, {days} days later",
                {"stated_on": document.stated_on.isoformat(), "committed_on": document.committed_on.isoformat()},
            )


RULES = (
    Rule(
        "versions",
        "a version that does not exist, or is newer than its document",
        "catalogue",
        "Nothing can be used before it is released.",
        (SUSPICIOUS, IMPOSSIBLE),
        versions,
    ),
    Rule(
        "architecture-in-library",
        "a model in a library that could not load it yet",
        "catalogue",
        "A library loads the architectures that were in it when it was released.",
        (IMPOSSIBLE,),
        before_the_architecture,
    ),
    Rule(
        "document-date",
        "a date before the document existed",
        "catalogue",
        "A document is written after it is begun.",
        (SUSPICIOUS,),
        document_dates,
    ),
)
