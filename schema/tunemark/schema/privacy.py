"""No machine identity leaves the machine: text in a submission is checked before it is written and again when it is judged."""

import contextlib
import getpass
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATTERNS: dict[str, re.Pattern[str]] = {
    "a path of a machine": re.compile(r"(?<![\w/:.])(?:/(?:[\w.@+-]+/)+[\w.@+-]*|[A-Za-z]:\\[^\s'\"]+|~/[\w./-]+)"),
    "an IPv4 address": re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])"),
    "a MAC address": re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"),
    "an e-mail address": re.compile(r"[\w.+-]+@[\w-]+\.[\w.]+"),
}
REMOVED = "<removed>"
SHORTEST_NAME = 3


def scrub(text: str) -> str:
    """Return text without paths, addresses, and the names of this host and user: for messages of errors."""
    for pattern in PATTERNS.values():
        text = pattern.sub(REMOVED, text)
    for name in machine_names():
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", REMOVED, text)
    return text


def machine_names() -> frozenset[str]:
    """Return names that identify this machine and its user; very short or generic ones identify nobody."""
    names = {socket.gethostname(), socket.gethostname().split(".")[0], Path.home().name}
    # A container user without a passwd entry has no name to protect.
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    return frozenset(name for name in names if len(name) > SHORTEST_NAME and name not in {"root", "user", "localhost", "ubuntu"})


def identity_leaks(record: dict[str, Any], names: frozenset[str] = frozenset()) -> list[tuple[str, str, str]]:
    """Return (field, value, what it is) for each text in a record that may identify a machine or a person."""
    leaks: list[tuple[str, str, str]] = []
    for field, text in _texts(record, ""):
        leaks.extend((field, match[0], what) for what, pattern in PATTERNS.items() if (match := pattern.search(text)))
        leaks.extend(
            (field, name, "the name of this host or user") for name in names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text)
        )
    return leaks


def _texts(node: Any, path: str) -> Iterator[tuple[str, str]]:  # noqa: ANN401 - any JSON value
    if isinstance(node, str):
        yield path, node
    elif isinstance(node, dict):
        for key, value in node.items():
            yield from _texts(value, f"{path}.{key}" if path else key)
            yield f"{path}.{key}" if path else key, key
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            yield from _texts(value, f"{path}.{index}")
