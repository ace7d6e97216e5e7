"""The base of all records: frozen, strict about field names, canonical as bytes."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from datetime import date
from itertools import islice
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

LARGEST = 2**53
"""From here on, JSON readers and doubles no longer represent whole numbers exactly."""
Seconds = Annotated[float, Field(ge=0, le=10 * 365 * 24 * 3600.0, description="Seconds, of ten years at most.")]
Bytes = Annotated[int, Field(ge=0, lt=LARGEST, description="Bytes; GiB = 2^30 bytes and GB = 10^9 bytes are made for display only.")]
Count = Annotated[int, Field(ge=0, lt=LARGEST)]
PositiveCount = Annotated[int, Field(ge=1, lt=LARGEST)]
# The database stores settings in 32 bits.
Setting = Annotated[int, Field(ge=1, lt=2**31)]
SettingOrZero = Annotated[int, Field(ge=0, lt=2**31)]
Share = Annotated[float, Field(ge=0, le=1, description="A share of a named total, 0 to 1.")]
Key = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=80, description="The name of a card in data/.")]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
ResultId = Annotated[str, Field(pattern=r"^[0-9a-f]{12}$", description="A submission: the first digits of the hash of its bytes.")]
Text = Annotated[str, Field(min_length=1, max_length=2_000)]
RecordId = Annotated[str, Field(pattern=r"^[0-9]{3}-S?[0-9]{2,3}$", description="A published result or a statement of a document.")]
Records = tuple[RecordId, ...]
FIRST_DAY = date(2010, 1, 1)
"""The oldest software that results name (CUDA 3) came out in this year."""
PLACEHOLDER = re.compile(r"(?i)\W*(?:|todo|tbd|tba|fixme|unknown|none|null|n/?a|x+|source|somewhere|internet|web|google|wikipedia)\W*")


def _says_something(source: str) -> str:
    if PLACEHOLDER.fullmatch(source):
        raise ValueError("says nothing; name the page, or repository, file and commit")
    return source


def one_of(known: Collection[str], what: str) -> AfterValidator:
    """Return the validator of a word that must be known; `what` names all of them."""

    def check(word: str) -> str:
        if word not in known:
            from tunemark.schema.errors import did_you_mean  # noqa: PLC0415 - only a wrong word needs it

            raise ValueError(f"{word} is not in {what}; {did_you_mean(word, known)}")
        return word

    return AfterValidator(check)


Day = Annotated[
    date, Field(ge=FIRST_DAY, description="A day that has come: the validator of facts checks that, since readers' clocks can be wrong.")
]
Source = Annotated[Text, AfterValidator(_says_something)]
PackageVersion = Annotated[str, Field(pattern=r"^\d+(\.\d+)*((a|b|rc|\.post|\.dev)\d+)*$")]


def absent(value: object) -> bool:
    """Return True for an unknown value of a newer field, which is not written: older records keep their bytes, and so their ids."""
    return value is None or value == {}


class Frozen(BaseModel):
    """A record. Unknown fields are errors, values never change, and NaN is never stored."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


MOST_SAID = 5
"""Contradictions of one record that a message lists."""


def consistency(contradictions: Callable[[Any], Iterator[str]]) -> Any:  # noqa: ANN401 - what pydantic makes of a validator
    """Make a validator of a method that yields the contradictions between the fields of a record: such a record cannot be read."""

    def check(record: Any) -> Any:  # noqa: ANN401 - any record
        found = list(islice(contradictions(record), MOST_SAID))
        if found:
            raise ValueError("; ".join(found))
        return record

    return model_validator(mode="after")(check)


def value_or_reason(value: str, reason: str) -> Any:  # noqa: ANN401 - as above
    """Make a validator: a field is null exactly if another one says why."""

    def contradiction(record: Any) -> Iterator[str]:  # noqa: ANN401 - any record
        given, why = getattr(record, value), getattr(record, reason)
        if (given is None) != (why is not None):
            yield f"{value} is {given!r} with {reason} {why!r}; give a value, or null and a reason"

    return consistency(contradiction)


def canonical_json(record: BaseModel | dict[str, Any]) -> bytes:
    """Return the record as canonical JSON bytes: sorted keys, indent 1, one final newline. Equal content gives equal bytes."""
    content = record.model_dump(mode="json") if isinstance(record, BaseModel) else record
    return (json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def content_id(content: bytes) -> str:
    """Return the id of a result: the first twelve hex digits of the SHA-256 of its canonical bytes."""
    return hashlib.sha256(content).hexdigest()[:12]


def flattened(node: Any, path: str = "", known: list[tuple[str, Any]] | None = None) -> list[tuple[str, Any]]:  # noqa: ANN401 - any JSON value
    """Return (dotted path, value) for each leaf, after those that are known; a list of plain values is a leaf."""
    # Generators within generators took twice the time.
    leaves = [] if known is None else known
    if isinstance(node, dict):
        for key, value in node.items():
            flattened(value, f"{path}.{key}" if path else str(key), leaves)
    elif isinstance(node, list) and any(isinstance(value, dict) for value in node):
        for index, value in enumerate(node):
            flattened(value, f"{path}.{index}", leaves)
    else:
        leaves.append((path, node))
    return leaves
