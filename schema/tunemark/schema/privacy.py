"""Privacy: text that may identify a machine or person is removed before a submission is written, and rejected when it is validated."""

import contextlib
import getpass
import re
import socket
import unicodedata
from collections.abc import Callable
from functools import lru_cache, partial
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
# Device nodes, which are the same on all machines.
_NODE = r"dev/(?:kfd|dri|shm|nvidia[\w-]*|neuron\d*)(?![\w/])"
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
                rf"(?<![\w/.)%])/(?!{_NODE})(?:{_PART}/+)+(?:{_PART})?{_MORE}",
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
    "a MAC address without marks": re.compile(
        r"\b(?:mac|ether|hwaddr|bssid|physical)\b(?: addr(?:ess)?)?[\s:=#]*[0-9a-f]{12}\b|\b(?=[0-9a-f.]*[a-f])[0-9a-f]{4}\.[0-9a-f]{4}\.[0-9a-f]{4}\b",
        re.IGNORECASE,
    ),
    "a MAC address with dashes": re.compile(r"(?<![\w-])(?:[0-9A-Fa-f]{2}-){5}[0-9A-Fa-f]{2}(?![\w-])"),
    "an e-mail address": re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+\.[\w.]+"),
    "an e-mail address, written out": re.compile(r"\w+ ?[\[(]?\b(?:at|AT)\b[\])]? ?[\w-]+ ?[\[(]?\b(?:dot|DOT)\b[\])]? ?\w{2,}"),
    # Not `org/model@main`, a revision on a hub, nor `pass@k`, a metric.
    "a user by name": re.compile(
        r"\b(?:by|from|for|as|owner) (?:user|owner):? (?!request|interrupt|signal|input|action|code|abort|defined|space|mode)[a-z][\w.-]{2,}"
    ),
    "a user at a host": re.compile(r"(?<![\w./+-])[A-Za-z_][\w.+-]*@[A-Za-z][\w-]+(?!\.?\w)"),
}
_TLD = "internal|local|localdomain|lan|corp|intra|intranet|home|cluster|com|org|net|edu|gov|mil|cloud|dev|tech|de|uk|fr|ch|eu|jp|cn|ru|br|ca|au"
_LIBRARIES = (
    "pytorch|nvidia|huggingface|python|github|gitlab|readthedocs|readthedocs-hosted|amd|pypi|deepspeed|intel|apple|amazon|anaconda|conda"
)
_WORDS = "host(?:[ _-]?name)?|node[ _-]?(?:name|list)|machine(?:[ _-]?(?:id|name))?|server|user(?:[ _-]?name)?|login|logged in as|account|container|pod"
PATTERNS |= {
    "a name of a host": re.compile(
        rf"(?<![\w./@-])(?!(?:[\w-]+\.)*(?:{_LIBRARIES})\.)[A-Za-z][\w-]*(?:\.[\w-]+)*\.(?:{_TLD})(?![\w(.-])|"
        r"\b(?:DESKTOP|LAPTOP|WIN|PC)-[A-Z0-9]{5,}\b|\bip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}\b|"
        r"\b[a-z][a-z0-9]*(?:-[a-z0-9]+)*-[0-9a-f]{8,10}-[a-z0-9]{5}\b|\b[\w-]+s-(?:MacBook|iMac|Mac)\b|"
        rf"\b(?:{_WORDS})\s*[:=]\s*['\"]?[\w.\[-]+|\b(?:machine-id|container|pod)\s+[0-9a-f]{{8,}}\b|\b(?:SLURM\w*|PBS_\w+|LOGNAME|SUDO_USER)\s*=|\b(?:gpu|node|cn|nid|worker|compute)\[?-?\d{{3,}}\b",
        re.IGNORECASE,
    ),
    "an identifier of hardware or an installation": re.compile(
        r"(?:GPU-|MIG-)?\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|"
        r"\b(?:serial(?:[ _-]?(?:no|number|num))?|s/n|asset[ _-]?tag)\s*[.:#=]*\s*[A-Z0-9-]{6,}|(?<!\d)\d{13}(?!\d)|"
        r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b|\barn:aws[\w-]*:|\b(?:i|vol|vpc|subnet|ami|eni|sg)-[0-9a-f]{8,17}\b|\bS-1-5-\d+(?:-\d+)+",
        re.IGNORECASE,
    ),
    "an address of a storage bucket": re.compile(r"\b(?:s3|gs|az|abfss?|wasbs?|hdfs|oss)://\S+", re.IGNORECASE),
    "a path of a machine, encoded": re.compile(r"(?:%2F|%5C)[\w.~-]+(?:%2F|%5C)", re.IGNORECASE),
    # With a country; a national one of five pairs, of an area in zeros or brackets; and after a word for it.
    "a phone number": re.compile(
        r"(?<![\w.])\+\d{1,3}[ .-]?(?:\(?\d{2,4}\)?[ .-]?){2,4}\d(?![\w.])|(?<![\w.,-])0[1-9](?:[ .-]\d\d){4}(?![\w.,-])|"
        r"(?<![\w.,-])0[1-9]\d{1,3}(?:[ /-]\d{6,8}|[ -]\d{3,4}[ -]\d{3,4})(?![\w.,-])|(?<![\w.,-])(?:\([2-9]\d\d\) ?|[2-9]\d\d-)[2-9]\d\d-\d{4}(?![\w.-])|"
        r"\b(?:tel|phone|telephone|telefon|fon|mobile|whatsapp)\b[.: ]*(?:\d[ ()./-]{0,3}){7,14}",
        re.IGNORECASE,
    ),
    "a social security number": re.compile(r"(?<![\w.-])(?!000|666|9)\d{3}-(?!00)\d\d-(?!0000)\d{4}(?![\w.-])"),
    "a bank account": re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b"),
    "credentials in a command": re.compile(
        r"\blogin\b.{0,60}\s-{1,2}(?:u|user(?:name)?|p|password)[= ]?\S|\s-u ?\S+\s+-p ?\S|--(?:password|passwd|token|secret|api-key)(?:=\S{4,}| (?=\S*\d)\S{6,})|"
        r"\b[a-z]+://[^\s/@:]+:[^\s/@]+@",
        re.IGNORECASE,
    ),
    # The forms in which services write their keys, and what is called a secret.
    "a secret": re.compile(
        r"\b(?:AKIA|ASIA|AGPA|AROA|AIDA|ANPA)[0-9A-Z]{16}\b|\bhf_[A-Za-z0-9]{20,}|\bgh[pousr]_[A-Za-z0-9]{30,}|\bgithub_pat_\w{20,}|"
        r"\bglpat-[\w-]{16,}|\bsk-(?:proj-|ant-|live-)?[\w-]{16,}|\b[sr]k_(?:live|test)_\w{16,}|\bxox[abposr]-[\w-]{10,}|\bAIza[\w-]{30,}|\bya29\.[\w-]{20,}|"
        r"\beyJ[\w-]{10,}\.[\w-]{8,}\.?[\w-]*|-----BEGIN|\bssh-(?:rsa|ed25519|dss)\s+\S+|\becdsa-sha2-\S+|\bnpm_\w{30,}|\bpypi-\w{16,}|\bSG\.[\w-]{16,}|\bnvapi-[\w-]{20,}|"
        r"\bgsk_\w{20,}|\bdapi[0-9a-f]{32}|\b\d{8,10}:[A-Za-z0-9_-]{33,}|\br8_\w{20,}|\b(?:AC|SK|SM|MM)[0-9a-f]{32}\b|\b(?!ZN)[a-z][a-z0-9]{0,9}_(?-i:(?=[A-Za-z0-9]*\d)(?=[A-Za-z0-9]*[a-z])(?=[A-Za-z0-9]*[A-Z]))[A-Za-z0-9]{28,}\b|"
        r"\bshp(?:at|ca|pa|ss)_[0-9a-f]{32}|\bauthorization:?\s*basic\s+\S{8,}|\bdop_v1_\w{30,}|\bhooks\.slack\.com|\bbearer\s+[\w.~+/-]{16,}|"
        r"\b(?:[\w-]*_)?(?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key|access[_-]?key|account[_-]?key|private[_-]?key|auth|credential)s?(?:_\w+)?\s*[=:]\s*['\"]?[^\s'\"]{6,}|"
        r"\bsecret\b.{0,20}\S{20,}",
        re.IGNORECASE,
    ),
    "a key": re.compile(r"\b(?=[A-Za-z0-9+]*[A-Z])(?=[A-Za-z0-9+]*[a-z])(?=[A-Za-z0-9+]*\d)[A-Za-z0-9+]{36,}={0,2}|\b[0-9a-f]{32,}\b"),
}


def _is_bank_account(text: str) -> bool:
    """Return True if a text begins with an international bank account number: its check digits make it 1 modulo 97 (ISO 13616)."""
    compact = text.replace(" ", "")
    for length in range(15, min(34, len(compact)) + 1):
        moved = compact[4:length] + compact[:4]
        if int("".join(str(int(character, 36)) for character in moved)) % 97 == 1:
            return True
    return False


CHECKS: dict[str, Callable[[str], bool]] = {"a bank account": _is_bank_account}
"""Kinds whose matches are only meant if they pass a check."""
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
        for what, pattern in PATTERNS.items():
            text = pattern.sub(partial(_removed, CHECKS.get(what, bool)), text)
        for name in names:
            text = _whole(name).sub(REMOVED, text)
        if text == before:
            break
    return text


def _removed(is_meant: Callable[[str], bool], match: re.Match[str]) -> str:
    return REMOVED if is_meant(match[0]) else match[0]


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
    found = (
        (next(filter(CHECKS.get(what, bool), (match[0] for match in pattern.finditer(plain))), None), what)
        for what, pattern in PATTERNS.items()
    )
    return tuple((match, what) for match, what in found if match is not None)


def _whole(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def _is_choice(record: dict[str, Any], field: str) -> bool:
    """Return True if a field is the value of an override that is a technical term."""
    section, _, rest = field.partition(".")
    return section == "overrides" and record[section][int(rest.partition(".")[0])].get("field") in CHOICES


HOLDERS = (str, dict, list, tuple)
"""Types of JSON content that may hold a text; most values of a record are numbers."""


def texts(content: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - any JSON value
    """Return (dotted path, text) for each text in JSON content, keys included."""
    found: list[tuple[str, str]] = []
    _add_texts(content, "", found)
    return found


def _add_texts(node: Any, path: str, found: list[tuple[str, str]]) -> None:  # noqa: ANN401 - any JSON value
    if isinstance(node, str):
        found.append((path, node))
    elif isinstance(node, dict):
        for key, value in node.items():
            field = f"{path}.{key}" if path else key
            if isinstance(value, HOLDERS):
                _add_texts(value, field, found)
            found.append((field, key))
    elif isinstance(node, list | tuple):
        for index, value in enumerate(node):
            if isinstance(value, HOLDERS):
                _add_texts(value, f"{path}.{index}", found)
