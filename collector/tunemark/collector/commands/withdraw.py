"""The command `withdraw`: mark a submission as no longer trusted, with a reason."""

from datetime import UTC, datetime
from typing import Annotated

import tomlkit
import typer

from tunemark.collector.commands.terminal import AsJson, print_json, say
from tunemark.schema.errors import TunemarkError, did_you_mean
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.facts.world_facts import Withdrawal
from tunemark.schema.files import is_checkout, project_root, write_atomically
from tunemark.schema.privacy import identity_leaks

FILE = "data/known/withdrawn.toml"
SHORTEST_REASON = 12
"""Characters below which a reason says nothing."""


def withdraw(
    result: Annotated[str, typer.Argument(metavar="ID", help="The submission: the last part of its file name.")],
    *,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why it is no longer trusted.")],
    as_json: AsJson = False,
) -> None:
    """Withdraw a submission: it stays readable with the reason, and enters no ranking, audit or prediction.

    A submission is never edited or removed. This adds an entry to data/known/withdrawn.toml, which a maintainer reviews like
    every change outside `submissions/`. Remove the entry to undo it.

    Examples
    --------
    - `tunemark withdraw 3f9a1c0b7d2e --reason "another job ran on the GPU"`
    """
    # Needs numpy, which --help does not.
    from tunemark.collector.gate.read import SUBMISSIONS, records_in, shown_path, submission_id  # noqa: PLC0415

    root = project_root()
    if not is_checkout(root):
        raise TunemarkError(
            "current directory", str(root), "is not a checkout of Tunemark; change into one, because withdrawals are stored in it"
        )
    known = {submission_id(path): path for path in records_in(root / SUBMISSIONS).files}
    if result not in known:
        raise TunemarkError("ID", result, f"no submission has this id; {did_you_mean(result, known)}")
    earlier = FactBase.of_root(root).known.withdrawal(result)
    if earlier is not None:
        raise TunemarkError("ID", result, f"was withdrawn on {earlier.withdrawn_on}: {earlier.reason}")
    text = " ".join(reason.split())
    if len(text) < SHORTEST_REASON:
        raise TunemarkError("--reason", reason, "say in a sentence what is wrong with the result")
    for _, value, what in identity_leaks({"reason": text}):
        raise TunemarkError("--reason", value, f"looks like {what}, which is not published; leave it out")
    entry = Withdrawal(result_id=result, withdrawn_on=datetime.now(tz=UTC).date(), reason=text)
    path = root / FILE
    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    entries = document.setdefault("withdrawn", tomlkit.aot())
    entries.append(tomlkit.item(entry.model_dump()))
    write_atomically(path, tomlkit.dumps(document).encode())
    place = shown_path(known[result], root)
    if as_json:
        print_json({"result_id": result, "submission": place, "withdrawn_on": str(entry.withdrawn_on), "reason": text, "file": FILE})
        return
    say(f"withdrew {place}: {text}")
    typer.echo(f"Commit {FILE} and open a pull request. `tunemark collect` shows the effect.")
