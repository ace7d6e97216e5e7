"""Find each printed figure of published results at the path and commit that it cites, in clones of the sources.

    python benchmarks check_sources FOLDER      # FOLDER holds clones: owner/name, owner+name, or either with a folder `repo`

Prints the figures that are not there by source, and what could not be read. Ends with 1 if a figure is missing.
"""

import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

from tunemark.collector.gate.read import PUBLISHED, read_or_none, records_in
from tunemark.schema.records.published import published_results

ROOT = Path(__file__).parents[1]
PLACE = re.compile(r"github\.com/(?P<name>[^@/]+/[^@/]+)@(?P<commit>[0-9a-f]{7,40}): (?P<path>.+)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:[eE][+-]?\d+)?|\.\d+")


@cache
def text_of(clones: Path, place: str) -> str | None:
    """Return the text of a cited file, once as it is and once without separators of thousands; None if the clone lacks it."""
    cited = PLACE.fullmatch(place)
    folders = (
        []
        if cited is None
        else [clones / name / part for name in (cited["name"], cited["name"].replace("/", "+")) for part in ("repo", "")]
    )
    clone = next((folder for folder in folders if folder.is_dir()), None)
    if cited is None or clone is None:
        return None
    shown = subprocess.run(["git", "-C", clone, "show", f"{cited['commit']}:{cited['path']}"], capture_output=True, check=False)
    text = shown.stdout.decode("utf-8", "replace")
    return text + text.replace(",", "") if shown.returncode == 0 else None


def check(root: Path, clones: Path) -> dict[str, tuple[int, list[str], set[str]]]:
    """Return by source: figures found, figures not found with their place, and places that could not be read."""
    found: dict[str, tuple[list[str], list[str], set[str]]] = defaultdict(lambda: ([], [], set()))
    for result in (each for path in records_in(root / PUBLISHED).files for each in published_results(read_or_none(path))):
        there, missing, unread = found[result.source]
        text = text_of(clones, place := result.origin.reference or "no place cited")
        for quantity, claim in result.claims.items():
            numbers = [number.replace(",", "") for number in NUMBER.findall(claim.printed)]
            if text is None:
                unread.add(place)
            elif all(re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", text) for number in numbers):
                there.append(claim.printed)
            else:
                missing.append(f"{result.id} {quantity} {claim.printed!r}: not in {place}")
    return {source: (len(there), missing, unread) for source, (there, missing, unread) in sorted(found.items())}


def main() -> None:
    """Print the table and the missing figures."""
    checked = check(ROOT, Path(sys.argv[1]).resolve())
    for source, (there, missing, unread) in checked.items():
        print(
            f"{source}  {there:>5} found  {len(missing):>4} missing" + "".join(f"\n     not read: {place}" for place in sorted(unread)[:3])
        )
    print(*(line for _, missing, _ in checked.values() for line in missing), sep="\n")
    sys.exit(any(missing for _, missing, _ in checked.values()))


if __name__ == "__main__":
    main()
