"""Figures that are possible, but unlike those of known runs: each asks for a second run, and none refuses a record.

They are the section `doubts` of relations.toml, and the versions of packages, which this catalogue knows up to a day.
"""

import re
from collections.abc import Iterator

from packaging.version import Version

from tunemark.collector.gate.relations import DOUBTS, section_problems
from tunemark.collector.gate.run_facts import Run
from tunemark.collector.gate.run_quantities import version_of
from tunemark.schema.records.reading import Problem


def doubts(r: Run) -> Iterator[Problem]:
    """Yield what is unlikely about a record."""
    yield from section_problems(DOUBTS, r)
    yield from (Problem(*doubt) for doubt in _versions(r))


def _versions(r: Run) -> Iterator[tuple[str, str, str]]:
    """Yield field, value and reason of versions that this catalogue does not know, that came out after the run, or that do not go together by it."""
    versions = {name: version for name, text in r.environment.packages.items() if (version := version_of(text)) is not None}
    python = version_of(".".join(r.environment.python.split(".")[:2]))
    known = versions | ({"python": python} if python else {})
    for name, version in versions.items():
        field, listed = f"environment.packages.{name}", next((each for each in r.facts.known.libraries if each.library == name), None)
        own = version.is_prerelease or version.is_postrelease or not re.fullmatch(r"(cpu|cu\d+|rocm[\d.]*|xpu)?", version.local or "")
        day = listed.released_on.get(version.base_version) if listed else None
        if listed and day is None and (not own or version.major > listed.newest.major + 1):
            yield field, str(version), f"is not among the releases that were known on {listed.read_on}"
        elif day is not None and not version.is_prerelease and (day - r.s.started_at.date()).days > 1:
            yield field, str(version), f"was released on {day}, after this run"
        for needed, requirement in r.facts.known.requirements_of(name, Version(version.base_version)).items():
            other = known.get(needed)
            low, high = Version(requirement.least), Version(requirement.newest) if requirement.newest else None
            if other is not None and (Version(other.base_version) < low or (high is not None and other.release[:2] > high.release[:2])):
                yield field, str(version), f"is for {needed} {low}{f' to {high}' if high else ' or newer'}, and the record has {other}"
