"""Run vendors' command-line tools and read their output. A tool that is missing, slow or broken returns nothing, never an error."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from tunemark.schema.errors import Exit, TunemarkError
from tunemark.schema.formats import GIB, MIB, counted

QUERY_TIMEOUT_S = 10.0
LONGEST_NAME = 200
UNITS = {"B": 1, "KB": 2**10, "MB": MIB, "GB": GIB}
"""Units of memory that tools print, by their meaning: powers of two."""
NO_VALUE = {"N/A", "UNKNOWN", "NONE", "[N/A]", "[NOT SUPPORTED]"}


def ask(*command: str) -> str | None:
    """Return the output of a tool; None when it is missing, fails, or takes too long."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, timeout=QUERY_TIMEOUT_S, check=True)  # noqa: S603 - fixed commands
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")


def ask_json(*command: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON output of a tool, or None."""
    return parse_json(ask(*command))


def parse_json(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    """Return the list or object of JSON in a text, which may follow lines of warnings; None without one."""
    for start in re.finditer(r"^\s*[\[{]", text or "", re.MULTILINE):
        with contextlib.suppress(ValueError):
            return json.loads((text or "")[start.start() :])
    return None


def last_object(lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the object of JSON in the last of some lines; None without one."""
    found = parse_json("".join(lines[-1:]))
    return found if isinstance(found, dict) else None


def dicts(value: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - any JSON value
    """Return the objects in a JSON list; any other value has none."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def nested(value: Any, *keys: str) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """Return the object at a path of keys; an empty one where a key is missing."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:  # noqa: ANN401 - any JSON value
    """Return the number in a tool's output, such as 750, "750.0" or {"value": 750, "unit": "W"}; None for N/A and the like."""
    if isinstance(value, dict):
        value = value.get("value")
    try:
        result = float(value)
    except (TypeError, ValueError):
        return None
    return result if abs(result) < float("inf") else None


def positive(value: Any) -> float | None:  # noqa: ANN401 - any JSON value
    """Return a number above zero, or None: tools print 0 for an unknown limit."""
    result = number(value)
    return result if result is not None and result > 0 else None


def bytes_of(value: Any) -> int | None:  # noqa: ANN401 - any JSON value
    """Return the bytes of a size such as {"value": 192, "unit": "GB"}; MB without a unit; None without a positive number or for other units."""
    amount, unit = positive(value), str(value.get("unit", "MB")).upper() if isinstance(value, dict) else "MB"
    return None if amount is None or unit not in UNITS else int(amount * UNITS[unit])


def text_of(value: Any) -> str | None:  # noqa: ANN401 - any JSON value
    """Return a name or version, or None where the tool has none."""
    text = str(value).strip() if isinstance(value, str | int | float) else ""
    return text[:LONGEST_NAME] if text and text.upper() not in NO_VALUE else None


MIG_PART = "names a part of a GPU (MIG), and this version measures whole GPUs only; name a GPU without MIG, or use --set backend=cpu"
PART_OF_DEVICE = re.compile(r"\d+(\.\d+)?|GPU-.+")
"""An index, an index with a tile, or a name."""


RANGE = re.compile(r"(\d+)-(\d+)")
"""Several indexes, which NEURON_RT_VISIBLE_CORES may list in this way."""


def hides_all(value: str) -> bool:
    """Return True for the usual values of an environment variable that hide all devices: nothing, or -1."""
    return not value.strip(", ") or value.strip(", ").startswith("-")


def visible_indexes(count: int, variable: str = "CUDA_VISIBLE_DEVICES", names: Sequence[str] = ()) -> list[int]:
    """Return the indexes of the devices that an environment variable leaves visible, in its order.

    Like the drivers, stop at the first number or name that does not exist. Names (`GPU-...`) are looked up in `names`;
    without them all devices stay visible, and the worker checks. An empty value, or one that begins with -1, hides all.

    Raises TunemarkError if the value names no device that exists: the user wants a device, and would silently get the CPU.
    """
    value = os.environ.get(variable)
    if value is None or not count:
        return list(range(count))
    parts: list[str] = []
    for part in filter(None, map(str.strip, value.split(","))):
        ends = RANGE.fullmatch(part)
        parts += map(str, range(int(ends[1]), int(ends[2]) + 1)) if ends else [part]
    if not names and parts and not all(part.isdecimal() for part in parts) and all(map(PART_OF_DEVICE.fullmatch, parts)):
        return list(range(count))
    visible: list[int] = []
    for part in parts:
        # As for the driver, the start of a name is enough.
        matches = [int(part)] if part.isdecimal() else [index for index, name in enumerate(names) if name.startswith(part)]
        if not matches or matches[0] >= count:
            break
        visible.append(matches[0])
    if not visible and not hides_all(value):
        here = "0" if count == 1 else f"0 to {count - 1}"
        fix = f"selects none of the {counted(count, 'device')} here; give {here}, unset it, or set it to '' to use the CPU"
        raise TunemarkError(variable, value, MIG_PART if parts[0].startswith("MIG-") else fix, exit_code=Exit.UNSUPPORTED)
    return visible
