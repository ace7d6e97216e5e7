"""Privacy: text that may identify a machine or person is removed before a submission is written, and rejected when it is validated."""

import contextlib
import getpass
import re
import socket
import tomllib
import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import Any

REMOVED = "<removed>"
SHORTEST_NAME = 3
ROUNDS = 5
"""Removing a match can uncover another one. This limits the number of passes."""


def _patterns() -> dict[str, re.Pattern[str]]:
    """Return the patterns of privacy.toml by what they find, with their fragments filled in."""
    content = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    patterns = {what: "|".join([pattern] if isinstance(pattern, str) else pattern) for what, pattern in content["patterns"].items()}
    # A fragment may hold those before it.
    for name, fragment in reversed(content["fragments"].items()):
        patterns = {what: pattern.replace(f"{{{name}}}", fragment) for what, pattern in patterns.items()}
    return {what: re.compile(pattern) for what, pattern in patterns.items()}


PATTERNS = _patterns()
VERSIONS = re.compile(r"environment\.(?:packages|runtime)\.|environment\.devices\.\d+\.driver$")
"""Fields with versions. Some versions have four parts, like an IPv4 address."""
SCANNED = 2_000
"""Characters of a text that are searched: no field may have more."""
REMEMBERED = 8_192
"""Texts whose verdict is kept."""
HASHES = re.compile(r"run_id|harness\.commit|.*sha256|study\.study_id|supersedes|started_at|format")
"""Fields whose schema allows nothing but digits."""
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
    for field, text in texts(record):
        if is_hash(field):
            continue
        skipped = "an IPv4 address" if VERSIONS.match(field) else ""
        leaks.extend((field, match, what) for match, what in _matches(text) if what != skipped)
        if FREE_TEXT.fullmatch(field) and not _is_choice(record, field):
            leaks.extend((field, name, "the name of this host or user") for name in names if _whole(name).search(text))
    return leaks


@lru_cache(maxsize=REMEMBERED)
def is_hash(field: str) -> bool:
    """Return True for a field whose schema allows nothing but digits."""
    return HASHES.fullmatch(field) is not None


@lru_cache(maxsize=REMEMBERED)
def _matches(text: str) -> tuple[tuple[str, str], ...]:
    """Return (match, kind) for each kind of identity in a text; records share most of their texts."""
    # Full-width letters are those of ASCII to a reader.
    plain = (text if text.isascii() else unicodedata.normalize("NFKC", text))[:SCANNED]
    return tuple((found[0], what) for what, pattern in PATTERNS.items() if (found := pattern.search(plain)))


def _whole(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def _is_choice(record: dict[str, Any], field: str) -> bool:
    """Return True if a field is the value of an override that is a technical term."""
    section, _, rest = field.partition(".")
    return section == "overrides" and record[section][int(rest.partition(".")[0])].get("field") in CHOICES


HOLDERS = (str, dict, list, tuple)
"""Types of JSON content that may hold a text; most values of a record are numbers."""


def texts(node: Any, path: str = "", known: list[tuple[str, str]] | None = None) -> list[tuple[str, str]]:  # noqa: ANN401 - any JSON value
    """Return (dotted path, text) for each text in JSON content, keys included, after those that are known."""
    found = [] if known is None else known
    if isinstance(node, str):
        found.append((path, node))
    elif isinstance(node, dict):
        for key, value in node.items():
            field = f"{path}.{key}" if path else key
            if isinstance(value, HOLDERS):
                texts(value, field, found)
            found.append((field, key))
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            if isinstance(value, HOLDERS):
                texts(value, f"{path}.{index}", found)
    return found
