"""The form of a corruption, the means to change a submission, and the corruptions of `value_corruptions.toml`.

A corruption changes a copy of a base and leaves it in canonical form under the right name, so that only the content is wrong.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gate_mutations.bases import Base, Content, file_name, suiting

Change = Callable[[Content], Content | list[Content] | None]
WIDE = ("plan", "environment", "effective")
"""Parts of a submission that are so large that a problem must name a part of them."""
COUNTS = ("slot_tokens", "real_tokens", "supervised_tokens", "documents", "rows")
COLUMNS = ("completed_at_s", *COUNTS, "loss")


@dataclass(frozen=True)
class Corruption:
    """One way in which a submission can be wrong."""

    family: str
    name: str
    field: str
    """Pattern of the fields of which one should be named."""
    change: Change
    """Change a copy of a base in place; return other content, or several submissions of which at least one must be refused."""
    on: str = "ok"
    """Traits of the bases that it suits."""
    flag: bool = False
    """True if it is possible, though unlikely: a request for a second run is enough."""
    place: Callable[[Content], Path] = file_name

    @property
    def bases(self) -> list[Base]:
        """The bases that it suits."""
        return list(suiting(self.on))

    def applied(self, to: Base) -> list[Content]:
        """Return the corrupted submissions of a base."""
        content = deepcopy(to.content)
        changed = self.change(content)
        return changed if isinstance(changed, list) else [content if changed is None else changed]

    def names(self, text: str) -> bool:
        """Return True if a problem names one of the fields."""
        return re.search(rf"\b(?:{self.field})", text) is not None


CORRUPTIONS: list[Corruption] = []


def corrupt(family: str, name: str, field: str, on: str = "ok", **more: Any) -> Callable[[Change], Change]:
    """Register a function as a corruption."""

    def register(change: Change) -> Change:
        CORRUPTIONS.append(Corruption(family, name, field, change, on, **more))
        return change

    return register


def read_values(path: Path) -> None:
    """Register the corruptions of a file of values."""
    for family, entries in tomllib.loads(path.read_text(encoding="utf-8")).items():
        for entry in entries:
            changed = [path.split(".") for kind in ("set", "copy", "scale", "divide", "add") for path in entry.get(kind, {})]
            sections = {re.escape(".".join(path[: 2 if path[0] in WIDE else 1])) for path in changed}
            named = entry.get("field") or "|".join([*sorted(sections), *(["warnings"] if "without_warning" in entry else [])])
            corrupt(family, entry["name"], named, entry.get("on", "ok"), flag=entry.get("flag", False))(_replacing(entry))


ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "scale": lambda old, factor: type(old)(old * factor),
    "divide": lambda old, divisor: old // divisor,
    "add": lambda old, more: old + more,
}


def _replacing(entry: dict[str, Any]) -> Change:
    """Return the change of an entry of a file of values, in the order that the file describes."""

    def change(content: Content) -> None:
        _move_entries(content, entry)
        sets(with_nulls(entry.get("set", {})))(content)
        for path, source in entry.get("copy", {}).items():
            node, place = places(content, source.split("."))[0]
            replace_at(content, path.split("."), lambda _, value=node[place]: deepcopy(value))
        for kind, compute in ARITHMETIC.items():
            for path, value in entry.get(kind, {}).items():
                replace_at(content, path.split("."), lambda old, value=value, compute=compute: compute(old, value))
        if "day" in entry:
            content["started_at"] = entry["day"] + content["started_at"][10:]
        if "without_warning" in entry:
            content["warnings"] = [warning for warning in content["warnings"] if warning["kind"] != entry["without_warning"]]

    return change


def _move_entries(content: Content, entry: dict[str, Any]) -> None:
    """Take entries out, put them there twice, and swap them."""
    for path in entry.get("drop", ()):
        for node, place in reversed(places(content, path.split("."))):
            del node[place]
    for path in entry.get("repeat", ()):
        node, place = places(content, path.split("."))[0]
        node.insert(place, deepcopy(node[place]))
    for one, other in entry.get("swap", ()):
        (node, place), (second, at) = places(content, one.split("."))[0], places(content, other.split("."))[0]
        node[place], second[at] = second[at], node[place]


def sets(values: dict[str, Any]) -> Change:
    """Return a change that sets values by dotted path."""

    def change(content: Content) -> None:
        for path, value in values.items():
            replace_at(content, path.split("."), lambda _, value=value: deepcopy(value))

    return change


def with_nulls(value: Any) -> Any:
    """Return a value in which the word "null" is null, for which TOML has no value."""
    if isinstance(value, dict):
        return {name: with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_nulls(inner) for inner in value]
    return None if value == "null" else value


def places(content: Any, path: Sequence[str]) -> list[tuple[Any, Any]]:
    """Return (node, key) of each place of a path; `*` is each entry, and a phase or a gate is found by its name."""
    name, *rest = path
    if name == "*":
        keys: list[Any] = list(range(len(content)) if isinstance(content, list) else content)
    elif isinstance(content, list):
        named = [
            place for place, entry in enumerate(content) if isinstance(entry, dict) and name in {entry.get("phase"), entry.get("name")}
        ]
        keys = named or [int(name)]
    else:
        keys = [name]
    if not rest:
        return [(content, key) for key in keys]
    return [found for key in (keys if name == "*" else keys[:1]) for found in places(content[key], rest)]


def replace_at(content: Any, path: Sequence[str], new: Callable[[Any], Any]) -> None:
    """Replace the value at each place of a path in JSON content."""
    for node, key in places(content, path):
        node[key] = new(node.get(key) if isinstance(node, dict) else node[key])


def cut(content: Content, kept: Iterable[int]) -> None:
    """Keep only some steps, as if the others had not been logged."""
    kept = list(kept)
    trace = content["trace"]
    for column in (*COLUMNS, *(["micro_completed_at_s"] if trace.get("micro_completed_at_s") else [])):
        trace[column] = [trace[column][step] for step in kept]
    for rank in content["ranks"]:
        rank["own_work_s"] = [rank["own_work_s"][step] for step in kept]
    content["outcome"]["last_good_step"] = len(kept)
    content["events"] = [event for event in content["events"] if event["step"] <= len(kept)]


def retime(content: Content, new: Callable[[np.ndarray], np.ndarray], *, whole: bool = True) -> None:
    """Replace the step times; `whole` moves the rest of the time line, so that the record stays in order."""
    trace = content["trace"]
    ends = np.array([trace["started_at_s"], *trace["completed_at_s"]])
    times = np.asarray(new(np.diff(ends)), float)
    starts, moved = ends[:-1], trace["started_at_s"] + np.concatenate([[0], np.cumsum(times)])
    for step, inside in enumerate(trace.get("micro_completed_at_s") or []):
        scale = times[step] / (ends[step + 1] - ends[step])
        trace["micro_completed_at_s"][step] = [moved[step] + (at - starts[step]) * scale for at in inside]
    trace["completed_at_s"] = [float(at) for at in moved[1:]]
    for rank in content["ranks"]:
        rank["own_work_s"] = [own * new_s / old_s for own, new_s, old_s in zip(rank["own_work_s"], times, np.diff(ends), strict=True)]
    if whole:
        later = float(moved[-1] - ends[-1])
        for mark in content["timeline"]:
            mark["at_s"] += later if mark["at_s"] >= ends[-1] else 0
        content["process"]["wall_s"] += later
        scale = times.sum() / np.diff(ends).sum()
        content["process"] |= {name: content["process"][name] * scale for name in ("user_s", "system_s")}
        for name in ("joules", "window_s"):
            if content["utilisation"] and content["utilisation"]["energy"][name]:
                content["utilisation"]["energy"][name] *= scale
        for sampled in (content["utilisation"], *content["utilisation"]["devices"]) if content["utilisation"] else ():
            sampled["samples"] = max(1, int(sampled["samples"] * scale))
