"""A run that was refused before it began is a result too: status `unsupported`, with the reason."""

from datetime import UTC, datetime

from tunemark.harness.launch import Finished
from tunemark.harness.telemetry import Telemetry
from tunemark.harness.worklog import WorkLog
from tunemark.schema.vocabulary import Status


def refused(reason: str) -> Finished:
    """Return what is known of a worker that was never started."""
    failure = {
        "status": Status.UNSUPPORTED.value,
        "message": reason,
        "fix": "choose another method, setting or device; `tunemark doctor` lists what runs here",
    }
    return Finished(
        log=WorkLog(failure=failure),
        telemetry=Telemetry(),
        started_at=datetime.now(UTC),
        wall_s=0.0,
        user_s=0.0,
        system_s=0.0,
        max_rss_bytes=0,
        exit_code=0,
        ended_by=None,
        host_oom_kills=0,
        model_cache="none",
        output_tail="",
    )
