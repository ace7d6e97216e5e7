"""The system description of an MLPerf entry: what the machine is, in the submitter's words."""

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tunemark.collector.importers.mllog import LogProblem, printable
from tunemark.schema.records.converted import ConvertedSystem

TEXTS = {
    "name": "system_name",
    "availability": "status",
    "accelerator_printed": "accelerator_model_name",
    "accelerator_memory_printed": "accelerator_memory_capacity",
    "accelerator_interconnect_printed": "accelerator_interconnect",
    "host_processor_printed": "host_processor_model_name",
    "host_memory_printed": "host_memory_capacity",
    "framework_printed": "framework",
    "operating_system": "operating_system",
}
"""Our field -> key of the description."""
COUNTS = {
    "nodes": "number_of_nodes",
    "accelerators_per_node": "accelerators_per_node",
    "host_processors_per_node": "host_processors_per_node",
}
NOTES = ("hw_notes", "sw_notes")
EMPTY = {"", "n/a", "none", "-"}
LONGEST = 2_000
KEY = re.compile(r'[\s{,]*"([^"\\]{1,200})"\s*:')


def read_system(file: str, content: bytes, problems: list[LogProblem]) -> dict[str, Any] | None:
    """Return a system description as it is, or None where it is no JSON object."""
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        problems.append(LogProblem(file, line, f"not a system description: {error}"))
        return None
    if isinstance(raw, dict):
        return raw
    problems.append(LogProblem(file, 1, f"not a system description: a JSON {type(raw).__name__}, not an object"))
    return None


def system_of(raw: dict[str, Any], folder: str, file: str, lines: Mapping[str, int], problems: list[LogProblem]) -> ConvertedSystem:
    """Return the machine of a description; counts that are no counts are unknown and reported."""
    fields: dict[str, Any] = {name: printed(raw.get(key)) for name, key in TEXTS.items()}
    fields["name"] = fields["name"] or folder
    for name, key in COUNTS.items():
        fields[name] = _count(raw.get(key))
        if fields[name] is None:
            problems.append(LogProblem(file, lines.get(key), f"{key} is {str(raw.get(key))[:40]!r}, not a number of things; left unknown"))
    fields["notes"] = tuple(text for key in NOTES if (text := printed(raw.get(key))))
    try:
        return ConvertedSystem(**fields)
    except ValidationError as error:
        problems.append(LogProblem(file, 1, f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}"))
        return ConvertedSystem(name=folder)


def lines_of_keys(content: bytes) -> dict[str, int]:
    """Return the line of each key that stands at the beginning of a line of a JSON object."""
    found: dict[str, int] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        key = KEY.match(line)
        if key:
            found.setdefault(key[1], number)
    return found


def software_of(raw: dict[str, Any]) -> dict[str, str]:
    """Return the software stack by name, as printed: one object, or a list of them, or words."""
    stack = raw.get("other_software_stack")
    parts = stack if isinstance(stack, list) else [stack]
    found: dict[str, str] = {}
    for part in parts:
        if isinstance(part, dict):
            found |= {str(name)[:80]: text for name, value in part.items() if (text := printed(value))}
        elif text := printed(part):
            found[f"other_{len(found) + 1}" if "other" in found else "other"] = text
    framework = printed(raw.get("framework"))
    return ({"framework": framework} if framework else {}) | found


def printed(value: object) -> str | None:
    """Return a value of a description as text, or None where it says nothing."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        return None
    text = printable(str(value))
    return text[:LONGEST] if text.lower() not in EMPTY else None


def _count(value: object) -> int | None:
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() and int(text[:12]) > 0 else None
