"""Days as people type them on the command line."""

from datetime import UTC, date, datetime

from tunemark.schema.errors import TunemarkError


def day_of(option: str, text: str | None) -> date:
    """Return the day that an option names, today when it is left out; raises TunemarkError for what is no day."""
    if text is None:
        return datetime.now(tz=UTC).date()
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise TunemarkError(option, text, "not a day; write it as YYYY-MM-DD") from error
