"""Submissions of the gate's examination with some values changed."""

from typing import Any

from gate_mutations.bases import base
from gate_mutations.corruptions import replace_at

from tunemark.schema.records.submission import Submission

KEYED = {"reason ": ("plan", "reasons"), "environment.packages.": ("environment", "packages")}
"""Beginning of a path -> the section whose keys may have dots themselves."""


def changed(name: str, values: dict[str, Any]) -> Submission:
    """Return a base with values by dotted path; a function gets the old value."""
    content = base(name)
    for path, value in values.items():
        keyed = next((start for start in KEYED if path.startswith(start)), None)
        if keyed is not None:
            section, part = KEYED[keyed]
            content[section][part][path.removeprefix(keyed)] = value
        else:
            replace_at(content, path.split("."), value if callable(value) else (lambda _, value=value: value))
    return Submission.model_validate(content)
