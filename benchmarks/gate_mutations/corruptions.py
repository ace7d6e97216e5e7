"""The form of a corruption, the means to change a submission, and the corruptions of `value_corruptions.toml`.

A corruption changes a copy of a base and leaves it in canonical form under the right name, so that only the content is wrong.
"""

import re
import tomllib
from collections.abc import Callable, Iterable
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
            changed = [path.split(".") for kind in ("set", "scale", "divide", "add") for path in entry.get(kind, {})]
            sections = {re.escape(".".join(path[: 2 if path[0] in WIDE else 1])) for path in changed}
            named = entry.get("field") or "|".join([*sorted(sections), *(["warnings"] if "without_warning" in entry else [])])
            corrupt(family, entry["name"], named, entry.get("on", "ok"), flag=entry.get("flag", False))(_replacing(entry))


def _replacing(entry: dict[str, Any]) -> Change:
    """Return the change of an entry of a file of values."""

    def change(content: Content) -> None:
        sets(with_nulls(entry.get("set", {})))(content)
        for path, factor in entry.get("scale", {}).items():
            replace_at(content, path.split("."), lambda old, factor=factor: type(old)(old * factor))
        for path, divisor in entry.get("divide", {}).items():
            replace_at(content, path.split("."), lambda old, divisor=divisor: old // divisor)
        for path, more in entry.get("add", {}).items():
            replace_at(content, path.split("."), lambda old, more=more: old + more)
        if "day" in entry:
            content["started_at"] = entry["day"] + content["started_at"][10:]
        if "without_warning" in entry:
            content["warnings"] = [warning for warning in content["warnings"] if warning["kind"] != entry["without_warning"]]

    return change


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


def replace_at(node: Any, path: list[str], new: Callable[[Any], Any]) -> None:
    """Replace the value at a path in JSON content; `*` is each entry of a list."""
    name, *rest = path
    for place in range(len(node)) if name == "*" else [int(name) if isinstance(node, list) else name]:
        if rest:
            replace_at(node[place], rest, new)
        else:
            node[place] = new(node.get(place)) if isinstance(node, dict) else new(node[place])


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


def phase(content: Content, name: str, *, last: bool = False) -> dict[str, Any]:
    """Return the first or last phase of a name."""
    marks = [mark for mark in content["timeline"] if mark["phase"] == name]
    return marks[-1 if last else 0]


def median(content: Content) -> float:
    """Return the median step time."""
    return float(np.median(np.diff([content["trace"]["started_at_s"], *content["trace"]["completed_at_s"]])))
