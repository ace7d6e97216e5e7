"""No machine identity leaves the machine: text in a submission is checked before it is written and again when it is judged."""

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
"""What is removed may uncover what was hidden in it; more often than this it does not."""

# A part of a path, and what follows a path with a blank in it: ` smith/private`.
_PART = r"[^\s/\\'\"`<>|:;,()\[\]{}]+"
_MORE = rf"(?: {_PART}(?:/{_PART})+/?)*"
# Folders that stand alone as paths: `/data`. Other words after a slash are units: `tokens/s`, `USD /hour`.
_TOP = "home|root|data|mnt|media|tmp|var|opt|srv|usr|etc|scratch|workspace|work|lustre|gpfs|nfs|fsx|efs|Users|Volumes|private"
_START = r"(?:file:/|[A-Za-z]:[\\/]|\\\\|~[\w.-]*/|/)"
_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_HEX = "[0-9a-fA-F]{1,4}"

PATTERNS: dict[str, re.Pattern[str]] = {
    "a path of a machine": re.compile(
        "|".join(
            (
                # In quotes up to the closing one; the quotes stay.
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
    # All that name a machine begin with four digits; fewer are names in code, such as c10::add.
    "an IPv6 address": re.compile(
        rf"(?<![\w:.])[0-9a-fA-F]{{4}}(?:(?::{_HEX}){{7}}|(?::{_HEX}){{0,6}}::(?:{_HEX}(?::{_HEX}){{0,6}})?)(?![\w:])"
    ),
    "a MAC address": re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}(?![\w:])"),
    "an e-mail address": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"),
    # Not `org/model@main`, which is a revision on a hub, nor `pass@k`, which is a metric.
    "a user at a host": re.compile(r"(?<![\w./+-])[A-Za-z_][\w.+-]*@[A-Za-z][\w-]+(?!\.?\w)"),
}
VERSIONS = re.compile(r"environment\.(?:packages|runtime)\.|environment\.devices\.\d+\.driver$")
"""Fields whose values are versions, some of which have four parts as an IPv4 address has."""
FREE_TEXT = re.compile(r"outcome\.(?:message|fix)|plan\.data\.name|warnings\.\d+\.message|overrides\.\d+\.(?:card|run)")
"""Fields in which a name is a name; elsewhere words are those of the field, and a host may be called `llama`."""
CHOICES = frozenset({"model", "method", "task", "weights", "compute", "data.source", "data.padding", "gradient_checkpointing"})
CHOICES |= {"optimizer.name", "optimizer.scheduler", "lora.target_modules"}
"""Settings of a card whose overrides hold words of the field."""


def scrub(text: str) -> str:
    """Return text without paths, addresses, and the names of this host and user: for messages of errors."""
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
    """Return names that identify this machine and its user; very short or generic ones identify nobody."""
    names = {socket.gethostname(), socket.gethostname().split(".")[0], Path.home().name}
    # A container user without a passwd entry has no name to protect.
    with contextlib.suppress(KeyError, OSError):
        names.add(getpass.getuser())
    return frozenset(name for name in names if len(name) > SHORTEST_NAME and name not in {"root", "user", "localhost", "ubuntu", "removed"})


def identity_leaks(record: dict[str, Any], names: frozenset[str] = frozenset()) -> list[tuple[str, str, str]]:
    """Return (field, value, what it is) for each text in a record that may identify a machine or a person.

    Names of host and user are looked for where people and programs write free text, see FREE_TEXT.
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
    """Return whether a field is the value of an override that is a word of the field."""
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
