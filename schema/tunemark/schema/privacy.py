"""Privacy: text that may identify a machine or person is removed before a submission is written, and rejected when it is validated."""

import contextlib
import getpass
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REMOVED = "<removed>"
SHORTEST_NAME = 3
ROUNDS = 5
"""Removing a match can uncover another one. This limits the number of passes."""

# A part of a path, and what follows a path with a space in it: ` smith/private`.
_PART = r"[^\s/\\'\"`<>|:;,()\[\]{}]+"
_MORE = rf"(?: {_PART}(?:/{_PART})+/?)*"
# Folders that are paths by themselves: `/data`. Other words after a slash are units: `tokens/s`, `USD /hour`.
_TOP = "home|root|data|mnt|media|tmp|var|opt|srv|usr|etc|scratch|workspace|work|lustre|gpfs|nfs|fsx|efs|Users|Volumes|private"
_START = r"(?:file:/|[A-Za-z]:[\\/]|\\\\|~[\w.-]*/|/)"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_HEX = "[0-9a-fA-F]{1,4}"

PATTERNS: dict[str, re.Pattern[str]] = {
    "a path of a machine": re.compile(
        "|".join(
            (
                # Inside quotes, up to the closing quote; the quotes are kept.
                rf"(?<=')(?<!\w'){_START}[^'\n<>]+(?=')",
                rf"(?<=\"){_START}[^\"\n<>]+(?=\")",
                rf"(?<=`){_START}[^`\n<>]+(?=`)",
                r"\bfile:/+[^\s'\"`<>]+",
                r"(?<!\w)[A-Za-z]:[\\/][^\s'\"`<>]+(?: [^\s\\/'\"`<>]+[\\/][^\s'\"`<>]*)*",
                r"(?<!\\)\\{2,}[\w.$-]+\\+[^\s'\"`<>]+",
                rf"(?<![\w:/.])//{_PART}/{_PART}(?:/{_PART})*/?{_MORE}",
                rf"(?<![\w/.)%])/(?:{_PART}/+)+(?:{_PART})?{_MORE}",
                rf"(?<![\w/.)%])/(?:{_TOP})(?!\w)",
                r"(?<!\w)~(?:[A-Za-z_][\w.-]*)?/[\w./-]+",
            )
        )
    ),
    "an IPv4 address": re.compile(rf"(?<![\w.])(?:{_OCTET}\.){{3}}{_OCTET}(?!\.?\w)"),
    # All that identify a machine begin with four digits. Fewer are names in code, such as c10::add.
    "an IPv6 address": re.compile(
        rf"(?<![\w:.])[0-9a-fA-F]{{4}}(?:(?::{_HEX}){{7}}|(?::{_HEX}){{0,6}}::(?:{_HEX}(?::{_HEX}){{0,6}})?)(?![\w:])"
    ),
    "a MAC address": re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"),
    "an e-mail address": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"),
    # Not `org/model@main`, a revision on a hub, nor `pass@k`, a metric.
    "a user at a host": re.compile(r"(?<![\w./+-])[A-Za-z_][\w.+-]*@[A-Za-z][\w-]+(?!\.?\w)"),
}
VERSIONS = re.compile(r"environment\.(?:packages|runtime)\.|environment\.devices\.\d+\.driver$")
"""Fields with versions. Some versions have four parts, like an IPv4 address."""
FREE_TEXT = re.compile(r"outcome\.(?:message|fix)|plan\.data\.name|warnings\.\d+\.message|overrides\.\d+\.(?:card|run)")
"""Fields in which names are searched for. Other fields hold technical terms, and a host may be called `llama`."""
CHOICES = frozenset({"model", "method", "task", "weights", "compute", "data.source", "data.padding", "gradient_checkpointing"})
CHOICES |= {"optimizer.name", "optimizer.scheduler", "lora.target_modules"}
"""Settings of a card whose overrides hold technical terms."""


def scrub(text: str) -> str:
    """Return an error message without paths, addresses, and the names of this host and user."""
    names = machine_names()
    for _ in range(ROUNDS):
        before = text
        for pattern in PATTERNS.values():
            text = pattern.sub(REMOVED, text)
        for name in names:
            text = _whole(name).sub(REMOVED, text)
        if text == before:
            break
    return text


def machine_names() -> frozenset[str]:
    """Return the names of this machine and its user, except very short or generic ones."""
    names = {socket.gethostname(), socket.gethostname().split(".")[0], Path.home().name}
    # A container user without a passwd entry has no name.
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    return frozenset(name for name in names if len(name) > SHORTEST_NAME and name not in {"root", "user", "localhost", "ubuntu", "removed"})


def identity_leaks(record: dict[str, Any], names: frozenset[str] = frozenset()) -> list[tuple[str, str, str]]:
    """Return (field, value, kind) for each text in a record that may identify a machine or a person.

    Names of the host and user are searched for in free text only, see FREE_TEXT.
    """
    leaks: list[tuple[str, str, str]] = []
    for field, text in _texts(record, ""):
        skipped = "an IPv4 address" if VERSIONS.match(field) else ""
        leaks.extend((field, match[0], what) for what, pattern in PATTERNS.items() if what != skipped and (match := pattern.search(text)))
        if FREE_TEXT.fullmatch(field) and not _is_choice(record, field):
            leaks.extend((field, name, "the name of this host or user") for name in names if _whole(name).search(text))
    return leaks


def _whole(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def _is_choice(record: dict[str, Any], field: str) -> bool:
    """Return True if a field is the value of an override that is a technical term."""
    section, _, rest = field.partition(".")
    return section == "overrides" and record[section][int(rest.partition(".")[0])].get("field") in CHOICES


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
