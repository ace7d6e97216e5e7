"""Attacks by files: real names, bytes, modes and links in a temporary checkout, beside a good submission that must stay valid."""

import gzip
import io
import json
import os
import re
import socket
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gate_mutations.bases import Content, base, file_name
from gate_mutations.copy_corruptions import again
from gate_mutations.simulated import ROOT
from tunemark.schema.records.base import canonical_json, content_id


@dataclass(frozen=True)
class Place:
    """A checkout with one committed submission, and a new one that an attack starts from."""

    root: Path
    committed: Path
    """The committed submission."""
    new: Content

    @property
    def folder(self) -> Path:
        """The folder of the new submission."""
        return self.root / "submissions" / self.new["plan"]["workload"]

    @property
    def made(self) -> Path:
        """That folder, which is made if it does not exist."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder

    @property
    def good_name(self) -> str:
        """The right file name of the new submission."""
        return file_name(self.new).name

    @property
    def parts(self) -> dict[str, str]:
        """The parts of its right place, in capitals too, and half of the hash."""
        day, _, rest = self.good_name.partition("-")
        device, _, hashed = rest.removesuffix(".json").rpartition("-")
        parts = {"folder": self.folder.name, "day": day, "device": device, "hash": hashed, "half": hashed[:6]}
        return parts | {name.upper(): part.upper() for name, part in parts.items()}

    @property
    def good_bytes(self) -> bytes:
        """The new submission in canonical form."""
        return canonical_json(self.new)

    def put(self, path: str | bytes | Path, content: bytes | None = None) -> Path:
        """Write bytes to a path under `submissions/`, the new submission by default."""
        target = self.root / "submissions" / os.fsdecode(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(self.good_bytes if content is None else content)
        return target

    def hashed(self, content: bytes) -> None:
        """Write bytes under the right folder, day, device and hash, so that only the bytes are wrong."""
        self.put(f"{self.folder.name}/{self.good_name.rsplit('-', 1)[0]}-{content_id(content)}.json", content)


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PUBLISHED = ROOT / "data" / "published" / "003" / "003-001.json"
Attack = Callable[[Place], object]
ATTACKS: dict[str, Attack] = {}


def committed(place: Place) -> bytes:
    """Return the bytes of the committed submission."""
    return place.committed.read_bytes()


def edited(place: Place) -> Content:
    """Return the committed submission with another CPU time."""
    content: Content = json.loads(committed(place))
    content["process"]["user_s"] += 1.0
    return content


def named(name: str, path: Callable[[Place], str | bytes], content: Callable[[Place], bytes] = lambda place: place.good_bytes) -> None:
    """Register an attack by the name or place of a good submission, by default the new one."""
    ATTACKS[name] = lambda place: place.put(path(place), content(place))


def linked(name: str, target: Callable[[Place], str | Path]) -> None:
    """Register a link under the name of a good submission."""
    ATTACKS[name] = lambda place: (place.made / place.good_name).symlink_to(target(place))


def raw(name: str, change: Callable[[str], str | bytes]) -> None:
    """Register an attack by the bytes of a submission, under the right name for these bytes."""

    def attack(place: Place) -> None:
        changed = change(place.good_bytes.decode())
        place.hashed(changed if isinstance(changed, bytes) else changed.encode("utf-8", "surrogatepass"))

    ATTACKS[name] = attack


def attack(name: str) -> Callable[[Attack], Attack]:
    """Register a function as an attack."""

    def register(function: Attack) -> Attack:
        ATTACKS[name] = function
        return function

    return register


# Names and places

for label, form in TABLE["names"].items():
    named(label, lambda place, form=form: form.format(**place.parts))
named("name not UTF-8", lambda p: f"{p.folder.name}/a".encode() + b"\xff" + f"-{p.good_name[-17:]}".encode())
named("folder not UTF-8", lambda p: b"smoke-\xff\xfe/" + p.good_name.encode())
named("a case variant of a committed file", lambda p: f"{p.folder.name}/{p.committed.name.upper()[:-5]}.json", committed)
named("a committed submission under another day", lambda p: f"{p.folder.name}/20261101{p.committed.name[8:]}", committed)
named("a committed submission in a second folder", lambda p: f"smoke-full/{p.committed.name}", committed)
named("a hundred folders deep", lambda p: f"{p.folder.name}/{'d/' * 100}{p.good_name}")


@attack("a copy of a committed submission with the same run_id")
def _(p: Place) -> None:
    run_id = json.loads(committed(p))["run_id"]
    copy = again(json.loads(committed(p))) | {"run_id": run_id}
    p.put(Path(copy["plan"]["workload"]) / file_name(copy).name, canonical_json(copy))


@attack("edit of a committed submission in place")
def _(p: Place) -> None:
    p.committed.write_bytes(canonical_json(edited(p)))


@attack("a committed submission moved to the name of its edited content")
def _(p: Place) -> None:
    content = edited(p)
    p.committed.unlink()
    p.put(f"{p.folder.name}/{file_name(content).name}", canonical_json(content))


# Kinds of files

for label, (path, content) in TABLE["beside"].items():
    ATTACKS[label] = lambda place, path=path, content=content: place.put(path, content.encode("latin-1"))


@attack("submission with the executable bit")
def _(p: Place) -> None:
    p.put(f"{p.folder.name}/{p.good_name}").chmod(0o755)


ATTACKS["fifo named .json"] = lambda place: os.mkfifo(place.made / place.good_name)
ATTACKS["folder named x.json"] = lambda place: (place.made / "x.json").mkdir()
ATTACKS["a folder that is a link"] = lambda place: (place.root / "submissions" / "smoke-more").symlink_to("/etc")
ATTACKS["a published record as a submission"] = lambda place: place.hashed(PUBLISHED.read_bytes())
linked("link to a file outside", lambda _: "/etc/hostname")
linked("link to a committed submission", lambda p: p.committed)
linked("link to itself", lambda p: p.good_name)


@attack("socket named .json")
def _(p: Place) -> None:
    here = Path.cwd()
    os.chdir(p.made)
    try:
        socket.socket(socket.AF_UNIX).bind("x.json")
    finally:
        os.chdir(here)


# Bytes

for label, (old, new) in TABLE["replaced"].items():
    raw(label, lambda text, old=old, new=new: re.sub(old, lambda match: new.replace("$1", match[match.re.groups]), text))
raw("binary", lambda _: bytes(range(256)) * 40)
raw("compressed", lambda text: gzip.compress(text.encode(), mtime=0))
raw("compact JSON", lambda text: json.dumps(json.loads(text), separators=(",", ":")))
raw("indented by tabs", lambda text: json.dumps(json.loads(text), indent="\t", sort_keys=True) + "\n")
raw("keys not sorted", lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=1, ensure_ascii=False) + "\n")
raw("BOM", lambda text: b"\xef\xbb\xbf" + text.encode())
raw("UTF-16", lambda text: text.encode("utf-16"))
raw("Latin-1 bytes", lambda text: text.replace('"os": "', '"os": "Gr\xfc\xdfe ').encode("latin-1"))
raw("cut in the middle", lambda text: text[: len(text) // 2])
raw("number of 4,000 digits", lambda text: re.sub(r'"system_s": [\d.]+', f'"system_s": {"9" * 4_000}', text))
raw("number of 5,000 digits", lambda text: re.sub(r'"system_s": [\d.]+', f'"system_s": {"9" * 5_000}', text))
raw("number of 100,000 digits as a count", lambda text: re.sub(r'"last_good_step": \d+', f'"last_good_step": {"9" * 100_000}', text))
raw("depth 900 in a field", lambda text: text.replace('"study": null', f'"study": {"[" * 900}{"]" * 900}'))
raw("depth 100,000", lambda text: text.replace('"study": null', f'"study": {"[" * 100_000}{"]" * 100_000}'))
raw("30 MB of blanks", lambda text: text + " " * 30_000_000)
raw(
    "100,000 unknown keys",
    lambda text: text.replace('"overrides":', ",\n ".join(f'"k{n}": 0' for n in range(100_000)) + ',\n "overrides":'),
)
raw("unsupported without devices", lambda text: _changed(text, {"status": "unsupported", "message": "no device"}))


def _changed(text: str, outcome: dict[str, Any]) -> str:
    content = json.loads(text)
    content["outcome"] |= outcome
    content["environment"]["devices"] = []
    return canonical_json(content).decode()


@attack("an archive named .json")
def _(p: Place) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("x.json", p.good_bytes)
    p.hashed(archive.getvalue())


def committed_and_new() -> tuple[Content, Content]:
    """Return the submission that is committed, and one that is new."""
    return base("lora"), base("qlora")
