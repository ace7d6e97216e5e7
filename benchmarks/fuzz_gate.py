"""Fuzz the gate: random bytes and random leaves of valid submissions, with the exceptions, the slowest input, and what is accepted.

    python benchmarks/fuzz_gate.py [--inputs 4000] [--seed 0] [--json]

Half of the inputs are files with changed bytes: they test that nothing stops the gate. Half are canonical files in which one random
value is replaced by another of the same type, within 20%, within a factor of 10, or by a hostile value: they test what is found.
Every value of a submission counts as often as its path with `[]` for positions in lists. Exit code 1 if the gate raised an exception.
"""

import argparse
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from gate_mutations.bases import bases, file_name
from gate_mutations.checkout import make_checkout

from tunemark.collector.gate.check import judge
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.records.base import canonical_json, content_id

HOSTILE: tuple[Any, ...] = (
    *(None, True, 0, -1, 2**31, 2**63, 10**400, 1e308, -0.0, 5e-324, "", "\x1b[31m", "\u202e", "\x00", "a" * 100_000),
    *([], {}, [[]], {"": None}, [None] * 10_000, {"a": {"a": {"a": {}}}}),
)
SHOWN = 15
"""Paths and exceptions in the report."""
Place = tuple[str | int, ...]


def leaves(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield each value that is neither a list nor an object, with its place."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, (*place, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, (*place, index))
    else:
        yield place, value


def pattern(place: Place) -> str:
    """Return a place with `[]` for positions in lists: `trace.loss[]`."""
    return "".join("[]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


def put(content: Any, place: Place, value: Any) -> None:
    """Replace the value at a place."""
    for part in place[:-1]:
        content = content[part]
    content[place[-1]] = value


def changed_value(draw: random.Random, value: Any, others: list[Any]) -> tuple[str, Any]:
    """Return a kind of change and another value."""
    kinds = ["hostile"]
    if isinstance(value, bool):
        kinds.append("flipped")
    elif isinstance(value, int | float) and value:
        kinds += ["within 20%", "within a factor of 10"]
    different = [other for other in others if other != value]
    if isinstance(value, str | None) and different:
        kinds.append("of another submission")
    kind = draw.choice(kinds)
    match kind:
        case "flipped":
            return kind, not value
        case "of another submission":
            return kind, draw.choice(different)
        case "hostile":
            return kind, draw.choice([other for other in HOSTILE if other != value or type(other) is not type(value)])
        case _:
            factor = 1 + draw.choice((-1, 1)) * draw.uniform(0.02, 0.2) if kind == "within 20%" else 10 ** draw.choice((-1, 1))
            new = value * factor
            return kind, (round(new) if round(new) != value else value + 1) if isinstance(value, int) else new


def changed_bytes(draw: random.Random, content: bytes) -> bytes:
    """Return a file with one to eight changes of bytes: replaced, removed, repeated or cut."""
    made = bytearray(content)
    for _ in range(draw.randint(1, 8)):
        if not made:
            break
        start = draw.randrange(len(made))
        end = min(len(made), start + draw.choice((1, 1, 2, 8, 64, 4096)))
        match draw.randrange(5):
            case 0:
                made[start:end] = draw.randbytes(end - start)
            case 1:
                del made[start:end]
            case 2:
                made[start:start] = made[start:end] * draw.choice((1, 2, 50))
            case 3:
                made[start : start + 1] = draw.choice(
                    (b'"', b"{", b"[", b"]", b"}", b",", b"\\u0000", b"\\ud800", b"1e999", b"NaN", b"\xff\xfe")
                )
            case _:
                del made[start:]
    return bytes(made)


def fuzz(inputs: int, seed: int) -> dict[str, Any]:
    """Return the outcome as JSON content."""
    draw, contents = random.Random(seed), [base.content for base in bases()]  # noqa: S311 - not for secrets
    values: dict[str, list[Any]] = defaultdict(list)
    places: list[dict[str, list[tuple[Place, Any]]]] = []
    for content in contents:
        found: dict[str, list[tuple[Place, Any]]] = defaultdict(list)
        for place, value in leaves(content):
            found[pattern(place)].append((place, value))
            values[pattern(place)] += [value] if value not in values[pattern(place)] else []
        places.append(found)
    crashes, slowest_s, slowest = Counter[str](), 0.0, ""
    tried, accepted, by_path = Counter[str](), Counter[str](), defaultdict[str, list[int]](lambda: [0, 0])
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        root = make_checkout(Path(name)).root
        facts = FactBase(root / "data")
        for number in range(inputs):
            which = draw.randrange(len(contents))
            path, kind, where = root / "submissions" / file_name(contents[which]), "bytes", ""
            if number % 2:
                new = changed_bytes(draw, canonical_json(contents[which]))
            else:
                where = draw.choice(sorted(places[which]))
                place, value = draw.choice(places[which][where])
                kind, other = changed_value(draw, value, values[where])
                copy = deepcopy(contents[which])
                put(copy, place, other)
                try:
                    new = canonical_json(copy)
                except (ValueError, TypeError, OverflowError):
                    new = json.dumps(copy).encode()
                path = path.with_name(f"{path.stem.rpartition('-')[0]}-{content_id(new)}.json")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(new)
            start_s = time.perf_counter()
            try:
                verdict = judge(path, facts)
            except Exception as error:  # noqa: BLE001 - the exception is the finding
                last = traceback.extract_tb(error.__traceback__)[-1]
                crashes[f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno} ({kind} {where})"] += 1
                continue
            finally:
                took_s = time.perf_counter() - start_s
                path.unlink()
                if took_s > slowest_s:
                    slowest_s, slowest = took_s, f"{kind} {where}".strip()
            tried[kind] += 1
            accepted[kind] += not verdict.problems
            if where:
                by_path[where][0] += 1
                by_path[where][1] += not verdict.problems
    return {
        "inputs": inputs,
        "seconds": round(time.monotonic() - began_s),
        "exceptions": dict(crashes),
        "slowest_s": slowest_s,
        "slowest": slowest,
        "accepted": {kind: [accepted[kind], tried[kind]] for kind in sorted(tried)},
        "accepted_paths": {path: counts for path, counts in sorted(by_path.items(), key=lambda item: -item[1][1]) if counts[1]},
    }


def main() -> int:
    """Fuzz, and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=4000, help="number of files (default: 4000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random changes (default: 0)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    result = fuzz(given.inputs, given.seed)
    if given.json:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
    else:
        lines = [f"{result['inputs']:,} inputs in {result['seconds']} s; slowest {result['slowest_s']:.2f} s ({result['slowest']})"]
        lines += [
            f"exceptions: {sum(result['exceptions'].values())}",
            *(f"  {count} x {what}" for what, count in list(result["exceptions"].items())[:SHOWN]),
        ]
        lines += [f"accepted, {kind}: {part} of {whole}" for kind, (part, whole) in result["accepted"].items()]
        lines += [f"  {path}: {part} of {whole}" for path, (whole, part) in list(result["accepted_paths"].items())[:SHOWN]]
        sys.stdout.write("\n".join(lines) + "\n")
    return int(bool(result["exceptions"]))


if __name__ == "__main__":
    sys.exit(main())
