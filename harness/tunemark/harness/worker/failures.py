"""What an exception in the worker means: a status, a message, and what to do about it."""

from tunemark.schema.vocabulary import Status

LESS_MEMORY = "lower batch.micro_batch or data.sequence_length, or use --set gradient_checkpointing=full"

GATED = "accept the model's licence on its hub page and log in with `hf auth login`, or use --weights random"
OFFLINE = "no network, or HF_HUB_OFFLINE is set: use --weights pretrained:DIRECTORY, --weights random, or --data file:PATH"
WEIGHTS = (
    "--weights wants a folder or hub repository with config.json, safetensors and, for text, a tokenizer, all of the card's model; "
    "--set model=KEY names another card of data/models, --set labels=N the classes of a head"
)
LOOK = "read the worker's output above; `tunemark doctor` shows this machine's software"
SAID_LINES = 4
OFFLINE_WORDS = (
    "couldn't connect",
    "offline",
    "connecterror",
    "connectionerror",
    "localentrynotfound",
    "cannot find the requested files",
    "max retries",
    "failed to resolve",
)


def describe(error: BaseException) -> dict[str, str]:
    """Return `status`, `message` and `fix` of an exception."""
    status, fix = judge(f"{type(error).__name__}: {error}") or (Status.CRASH, LOOK)
    lines = [line.strip() for line in str(error).strip().splitlines()] or [""]
    # A first line that ends in the middle of its sentence says nothing without the next ones.
    said = " ".join(lines[:SAID_LINES]) if lines[0].endswith((":", ",", " of", " from one of")) else lines[0]
    return {"status": status.value, "message": f"{type(error).__name__}: {said}".rstrip(": ")[:500], "fix": fix}


RULES: tuple[tuple[tuple[str, ...], Status, str], ...] = (
    (("lossnotfinite",), Status.NAN, "lower optimizer.learning_rate, or use a wider number format"),
    (("deviceunavailable",), Status.UNSUPPORTED, "run `tunemark doctor`; install a torch build for this device"),
    (
        (
            "outofmemoryerror",
            "cuda out of memory",
            "mps backend out of memory",
            "error: out of memory",
            "alloc_failed",
            "'out of memory'",
            "nrt_resource",
            "resource_exhausted",
        ),
        Status.OOM_DEVICE,
        LESS_MEMORY,
    ),
    (
        ("memoryerror: ", "\nmemoryerror", "can't allocate memory", "defaultcpuallocator", "cannot allocate memory"),
        Status.OOM_HOST,
        LESS_MEMORY,
    ),
    (
        ("no space left on device", "disk quota exceeded", "file too large"),
        Status.CRASH,
        "free disk space, or name another folder with TMPDIR",
    ),
    (
        ("is not a valid model identifier", "repositorynotfound", "datasetnotfound", "doesn't exist on the hub"),
        Status.CRASH,
        "no such repository on the hub, or it is private: check its name, or log in with `hf auth login`",
    ),
    (("gatedrepoerror", "gated repo", "401 client error"), Status.CRASH, GATED),
    (OFFLINE_WORDS, Status.CRASH, OFFLINE),
    (
        (
            "couldn't instantiate the backend tokenizer",
            "unrecognized model in",
            "no file named model.safetensors",
            "no file named pytorch_model.bin",
            "the weights are not those of model card",
            "ignore_mismatched_sizes",
        ),
        Status.CRASH,
        WEIGHTS,
    ),
    (("modulenotfounderror", "importerror"), Status.UNSUPPORTED, "install the missing package; `tunemark doctor` lists what is there"),
)
"""Words in the exception's name and text, the status they mean, and what to do. The first match counts."""


def judge(text: str) -> tuple[Status, str] | None:
    """Return what an error's name and text mean, and what to do; None where no rule knows."""
    lower = text.lower()
    return next(((status, fix) for words, status, fix in RULES if any(word in lower for word in words)), None)
