"""How to reproduce, download and cite a result: its command line, its files under data/records, and its citation."""

import csv
import hashlib
import io
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import log
from pathlib import Path

from tunemark.schema.files import ROOT_VARIABLE, project_root
from tunemark.schema.records.published import FORMAT, SET_FORMAT
from tunemark.site import wording
from tunemark.site.page import api_path, result_path, workload_path
from tunemark.site.queries import Catalogue
from tunemark.site.render import file_name
from tunemark.site.tables import Row
from tunemark.site.text import one_line
from tunemark.site.wording import web_link

RECORDS = "data/records"
STEP_COLUMNS = (
    "step",
    "label",
    "completed_at_s",
    "step_time_s",
    "slot_tokens",
    "real_tokens",
    "supervised_tokens",
    "documents",
    "rows",
    "loss",
)
STEPS = f"select {', '.join(STEP_COLUMNS)} from steps where result_id = ? order by step"  # noqa: S608 - our own names
NEAR_MODEL = log(2)
"""Largest ratio of parameters between a result and a card that counts as near."""
BIBTEX = re.compile(r"[\\{}%&#$_~^]")
"""Characters that are active in BibTeX."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """How to run a result again."""

    command: str | None
    """Command line, or None."""
    notes: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    """Commands that install the version of the harness that measured it."""
    workload: tuple[str, str] | None = None
    """Title and path of the workload card."""
    origin: str = ""
    """Where the configuration of a published result is."""
    origin_href: str | None = None


@dataclass(frozen=True, slots=True)
class Citation:
    """A result or its source as text and as BibTeX."""

    title: str
    text: str
    bibtex: tuple[str, ...]


# Commands ------------------------------------------------------------------------------------------


def of_measured(catalogue: Catalogue, row: Row) -> Reproduction:
    """Return the command that repeats a measured run, from its request."""
    facts = catalogue.facts.get(row["result_id"], ())
    known = {(fact["topic"], fact["name"]): fact["value"] for fact in facts}
    card = next((card for card in catalogue.workloads if card["workload"] == row["workload"]), None)
    return Reproduction(
        known.get(("requested", "command")),
        tuple(_notes(known, row)),
        (f"git checkout {row['harness_commit']}", "make setup-run") if row["harness_commit"] else (),
        (card["title"], workload_path(card["workload"])) if card else None,
    )


def _notes(known: Mapping[tuple[str, str], str | None], row: Row) -> Iterator[str]:
    if row["software"]:
        yield f"Measured with {row['software']}. All versions are in the full record."
    if known.get(("plan", "model.local")) == "true":
        yield "The weights came from a local directory, whose path is not recorded: replace DIRECTORY."
    if known.get(("plan", "data.source")) == "file":
        yield f"The data is a local file; its SHA-256 is {known.get(('plan', 'data.sha256'))}."
    if row["nodes"] not in (None, 1):
        yield "Run it on each machine, with node_rank and rendezvous of its own in --set."


def of_published(catalogue: Catalogue, row: Row) -> Reproduction:
    """Return the place of the source's configuration, and the nearest workload of ours as a command."""
    facts = {(fact["topic"], fact["name"]): (fact["value"], fact["reason"]) for fact in catalogue.facts.get(row["result_id"], ())}
    reference = next((value for (topic, _), pair in facts.items() if topic == "origin" for value in pair if value and "/" in value), None)
    source = catalogue.source_rows.get(row["source"], {})
    place = facts.get(("entry", "folder"), (None, None))[0] or reference or source.get("origin_repository") or row["section"]
    card = nearest_workload(catalogue, row)
    command, notes = _nearest_command(row, card) if card else (None, ("No workload card is near this result.",))
    return Reproduction(
        command,
        notes,
        (),
        (card["title"], workload_path(card["workload"])) if card else None,
        wording.plain(place),
        web_link(source.get("url")),
    )


def nearest_workload(catalogue: Catalogue, row: Row) -> Row | None:
    """Return the workload of the same task and method with the nearest model and sequence length, or None."""
    sizes = catalogue.model_parameters
    length = row["sequence_length"]

    def distance(card: Row) -> tuple[float, float, str]:
        model = 0.0 if card["model"] == row["model"] else abs(log(sizes[card["model"]] / sizes[row["model"]])) + 0.01
        return model, abs(log(card["sequence_length"] / length)) if length else 0.0, card["workload"]

    cards = [
        card
        for card in catalogue.workloads
        if card["method"] == row["method"]
        and card["task"] == row["task"]
        and (card["model"] == row["model"] or (sizes.get(row["model"]) and sizes.get(card["model"])))
    ]
    card = min(cards, key=distance, default=None)
    return card if card is not None and distance(card)[0] < NEAR_MODEL else None


def _nearest_command(row: Row, card: Row) -> tuple[str, tuple[str, ...]]:
    words = ["tunemark", "run", card["workload"]]
    devices = ["--devices", str(row["accelerator_count"])] if row["accelerator_count"] not in (None, card["devices"]) else []
    if card["model"] != row["model"]:
        return shlex.join([*words, *devices]), (f"No workload card has this model; the nearest has {card['model']}.",)
    settings = {
        "data.sequence_length": "sequence_length",
        "batch.micro_batch": "micro_batch",
        "batch.gradient_accumulation": "gradient_accumulation",
    }
    stated = [name for name in settings.values() if row[name] is not None]
    for field, name in settings.items():
        if row[name] not in (None, card[name]):
            words += ["--set", f"{field}={row[name]}"]
    words += devices
    unstated = [wording.words(name) for name in settings.values() if name not in stated]
    notes = ["The nearest workload card, with the conditions that the source states."]
    if unstated:
        notes.append(f"The source does not state {', '.join(unstated)}: the card's value is used.")
    if row["dataset"] not in (None, card["dataset"]):
        notes.append(f"The source trains on {row['dataset']}, the card on {card['dataset']}.")
    return shlex.join(words), tuple(notes)


# Files ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Downloads:
    """Paths in the site of the files of a result; None if there is no file."""

    record: str | None
    steps: str | None
    api: str


def downloads(row: Row) -> Downloads:
    """Return the files that a result's page links."""
    name = file_name(row["result_id"])
    record, steps = record_files(name)
    has_steps = row["source"] == "measured" and bool(row["steps"])
    return Downloads(record=record if _source_file(row) else None, steps=steps if has_steps else None, api=api_path(f"results/{name}"))


def record_files(result: str) -> tuple[str, str]:
    """Return the paths in the site of the record of a result and of its raw steps, if it has them."""
    return f"{RECORDS}/{result}.json", f"{RECORDS}/{result}.steps.csv"


def write_files(catalogue: Catalogue, folder: Path) -> None:
    """Write the record of each result, and the steps of each measured one, below a folder."""
    (folder / RECORDS).mkdir(parents=True, exist_ok=True)
    for row in catalogue.results:
        made = downloads(row)
        if made.record:
            (folder / made.record).write_bytes(record_bytes(row))
        if made.steps:
            (folder / made.steps).write_text(steps_csv(catalogue, row["result_id"]), encoding="utf-8")


def record_bytes(row: Row) -> bytes:
    """Return the record of a result: its file, or its line of a file with several results."""
    path = _source_file(row)
    if path is None:
        return b""
    if path.name != "results.json":
        return path.read_bytes()
    return json.dumps({"format": FORMAT} | _records(path)[row["result_id"]], ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def steps_csv(catalogue: Catalogue, result_id: str) -> str:
    """Return the raw steps of a measured result as CSV."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(STEP_COLUMNS)
    writer.writerows([row[name] for name in STEP_COLUMNS] for row in catalogue.database.rows(STEPS, result_id))
    return out.getvalue()


def _source_file(row: Row) -> Path | None:
    """Return the file of a result in the checkout, if it is still the file that was collected."""
    file = str(row["file"])
    if file.startswith("/") or ".." in file.split("/") or not file.endswith(".json"):
        return None
    path = _checkout(os.environ.get(ROOT_VARIABLE), os.getcwd()) / file  # noqa: PTH109 - as a key
    try:
        return path if _sha256(path, path.stat().st_mtime_ns) == row["sha256"] else None
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=4)
def _checkout(_named: str | None, _here: str) -> Path:
    return project_root().resolve()


@lru_cache(maxsize=4)
def _sha256(path: Path, _changed_ns: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@lru_cache(maxsize=4)
def _records(path: Path) -> dict[str, dict[str, object]]:
    content = json.loads(path.read_bytes())
    return {record["id"]: record for record in content["results"]} if content.get("format") == SET_FORMAT else {}


# Citations -----------------------------------------------------------------------------------------


def citations(catalogue: Catalogue, row: Row) -> list[Citation]:
    """Return the citations of a result: its source for a published one, and the result on this site."""
    source = catalogue.source_rows.get(row["source"])
    # The record of a source is as old as its reading, not as the source.
    year = str(source["read_on"] or "")[:4] or None if source else wording.day(row["started_us"])[:4]
    address = f"{catalogue.url}{result_path(row['result_id'])}.html"
    title = f"{wording.result_title(row)}: {row['trust']} result {row['result_id']}"
    fields = {"author": "Tunemark contributors", "title": title, "year": year, "howpublished": f"Tunemark, {address}"}
    note = {"note": f"SHA-256 of the record: {row['sha256']}"}
    text = f"Tunemark contributors. {title}. Tunemark{f', {year}' if year else ''}. {address}."
    own = Citation("This result", text, _bibtex(f"tunemark-{row['result_id']}", fields | note))
    return [_of_source(source), own] if source else [own]


def study_citation(catalogue: Catalogue, path: str, title: str) -> Citation:
    """Return the citation of a study as of the data of this build."""
    day = str(catalogue.database.rows("select max(as_of) as day from collection")[0]["day"] or "")
    address = f"{catalogue.url}{path}.html"
    fields = {"author": "Tunemark contributors", "title": title, "year": day[:4] or None, "howpublished": f"Tunemark, {address}"}
    text = f"Tunemark contributors. {title}. Tunemark{f', data of {day}' if day else ''}. {address}."
    return Citation("This study", text, _bibtex(f"tunemark-{path.rpartition('/')[2]}", fields | {"note": f"Data of {day}"}))


def _of_source(source: Row) -> Citation:
    year, authors = _year(source), source["authors"]
    who = f"{authors or 'Authors unknown'}{f' ({year})' if year else ''}"
    parts = (who, source["title"], source["url"] or source["origin_repository"], f"Read {source['read_on']}" if source["read_on"] else None)
    text = " ".join(f"{str(part).rstrip('.')}." for part in parts if part)
    fields = {"author": authors, "title": source["title"], "year": year, "url": source["url"]}
    return Citation("The source", text, _bibtex(f"source-{source['source']}", fields))


def _year(source: Row) -> str | None:
    """Return the latest year of publication that the source states."""
    return max(re.findall(r"\b(?:19|20)\d\d\b", str(source["published_on"] or "")), default=None)


def _bibtex(key: str, fields: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the lines of a BibTeX entry."""
    lines = []
    for name, value in fields.items():
        if value is not None:
            # A second pair of braces keeps BibTeX from splitting an organisation's name into first and last names.
            plain = BIBTEX.sub(lambda match: "" if match[0] in "\\{}~^" else f"\\{match[0]}", one_line(value))
            lines.append(f"{name} = {{{f'{{{plain}}}' if name == 'author' else plain}}},")
    return (f"@misc{{{key},", *lines, "}")
