"""Texts that must not get into a field of a submission, the fields that hold text, and honest messages that must be accepted."""

import tomllib
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from gate_mutations.bases import Content, base, identity_of
from gate_mutations.corruptions import replace_at
from gate_mutations.honest import cpu, gpu
from gate_mutations.simulated import Ending
from tunemark.harness.plan.resolve import Options
from tunemark.harness.run.run_log import judge
from tunemark.schema.vocabulary import Status


class Text(NamedTuple):
    """A text that somebody could put into a field."""

    kind: str
    """`privacy`: it identifies a person or a machine, or opens a door. `abuse`: it attacks a reader or a program."""
    name: str
    text: str
    inert: bool = False
    """True if a free message may hold it, provided that nothing that shows it acts on it."""


DATA = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
PRIVATE: dict[str, str] = {name: text.replace("{-}", "") for name, text in DATA["private"].items()}
PRINTABLE: dict[str, str] = DATA["printable"] | {"2,000 wide": "\u5bbd" * 2_000}
CONTROL: dict[str, str] = DATA["control"] | {"1 MB": "x" * 1_000_000}
TEXTS: tuple[Text, ...] = (
    *(Text("privacy", name, text) for name, text in PRIVATE.items()),
    *(Text("abuse", name, text, inert=True) for name, text in PRINTABLE.items()),
    *(Text("abuse", name, text) for name, text in CONTROL.items()),
)

MESSAGE = "outcome.message"
FIELDS: dict[str, str] = DATA["fields"]
"""Each field of a submission that holds text, and the base on which it is tried; KEY is a new name in a mapping."""


@cache
def _crash() -> Content:
    """Return a run that failed before its first step, whose message is the contributor's to explain."""
    failure = {"status": "crash", "message": "OSError: [Errno 5] Input/output error", "fix": "run `tunemark doctor`"}
    return cpu("lora", 161, ending=Ending("data", failure))


@cache
def _replacing() -> Content:
    """Return a run that replaces a committed one."""
    return gpu(160, options=Options(max_steps=120), supersedes={"supersedes": identity_of("h100"), "supersedes_reason": "text"})


def untouched(name: str) -> Content:
    """Return a copy of a base of `FIELDS`."""
    made = {"crash": _crash, "replacing": _replacing}
    return deepcopy(made[name]()) if name in made else base(name)


def with_id(content: Content, number: int) -> Content:
    """Return a submission with an id of its own."""
    return {**content, "run_id": f"{int(content['run_id'], 16) ^ (number + 1):032x}"}


def with_text(field: str, text: str) -> Content:
    """Return a submission with a text in a field."""
    name, status = FIELDS[field], "crash"
    if field == MESSAGE:
        # What the harness makes of this message.
        status = (judge(text) or (Status.CRASH,))[0].value
        name = "oom" if status == "oom_device" else name
    content = untouched(name)
    if name == "crash":
        content["outcome"]["status"] = status
    if field == "process.compile_cache_reason":
        content["process"]["compile_cache"] = None
    if field == "study.point":
        content["study"] = {"kind": "sweep", "study_id": "3b1f20c9aa41", "position": 1, "settings_sha256": "1f" * 32, "point": ""}
    if field == "plan.reasons.device.count":
        content["plan"]["reasons"]["device.count"] = text
        return content
    path: list[str] = field.split(".")
    value: Any = [text] if path[-1] == "throttle_reasons" else text
    if path[-1] == "KEY":
        old = content
        for step in path[:-1]:
            old = old[int(step)] if isinstance(old, list) else old[step]
        old[text[:100]] = {"parameter_bytes": 10, "throttle_shares": 0.01}.get(path[-2], "1.0")
        return content
    replace_at(content, path, lambda _: value)
    return content


def messages() -> list[str]:
    """Return honest messages of failures, in several languages."""
    return Path(__file__).with_name("honest_messages.txt").read_text(encoding="utf-8").splitlines()
