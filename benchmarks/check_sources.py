"""Find each printed figure of published results at the path and commit that it cites: `python benchmarks check_sources FOLDER`.

FOLDER holds clones of the sources: owner/name or owner+name, or either with a folder `repo`. Prints what is missing and what could not be read,
and ends with 1 if a figure is missing.
"""

import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

from tunemark.collector.gate.read import PUBLISHED, read_or_none, records_in
from tunemark.schema.records.published import published_results

PLACE = re.compile(r"github\.com/(?P<name>[^@/]+/[^@/]+)@(?P<file>[0-9a-f]{7,40}: .+)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+")


@cache
def text_of(clones: Path, place: str) -> str | None:
    """Return the text of a cited file, once as it is and once without separators of thousands; None if no clone has it."""
    cited = PLACE.fullmatch(place)
    names = [] if cited is None else [cited["name"], cited["name"].replace("/", "+")]
    clone = next((folder for name in names for folder in (clones / name / "repo", clones / name) if folder.is_dir()), None)
    command = ["git", "-C", str(clone), "show", cited["file"].replace(": ", ":", 1) if cited else ""]
    shown = None if clone is None else subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - our own command line
    text = shown.stdout.decode("utf-8", "replace") if shown is not None and shown.returncode == 0 else None
    return text and text + re.sub(r",|(?<=\d)[ \u00a0\u2009\u202f](?=\d{3}(?!\d))", "", text)


def check(root: Path, clones: Path) -> tuple[Counter[tuple[str, str]], list[str]]:
    """Return the number of figures by source and outcome, `found`, `missing` or `not read`, and a line for each missing one."""
    outcomes, missing = Counter[tuple[str, str]](), list[str]()
    for result in (each for path in records_in(root / PUBLISHED).files for each in published_results(read_or_none(path))):
        text = text_of(clones, place := result.origin.reference or "no place")
        for quantity, claim in result.claims.items():
            numbers = [number.replace(",", "") for number in NUMBER.findall(claim.printed)]
            found = text is not None and all(re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", text) for number in numbers)
            outcomes[result.source, "not read" if text is None else "found" if found else "missing"] += 1
            missing += [f"{result.id} {quantity}: {claim.printed!r} is not in {place}"] if text is not None and not found else []
    return outcomes, missing


if __name__ == "__main__":
    counts, lines = check(Path(__file__).parents[1], Path(sys.argv[1]).resolve())
    print(*(f"{source}  {number:>5} {outcome}" for (source, outcome), number in sorted(counts.items())), *lines, sep="\n")
    sys.exit(bool(lines))
