"""Suggestions for misspelt names of accelerators, models and instances, shared by all commands."""

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from tunemark.schema.errors import bare, nearest, suggested
from tunemark.schema.facts.cards import APPLE, AcceleratorCard, ModelCard

AWS = re.compile(r"(?P<family>(?:dl|gr|g|inf|p|trn|vt)\d[a-z0-9]*(?:-[a-z0-9]+)?)\.(?P<size>[a-z0-9-]*(?:large|metal)[a-z0-9-]*)")
"""Names of AWS instances with accelerators. No other provider uses this form."""
VARIANTS = frozenset(("instruct", "it", "chat", "base", "hf", "bnb", "4bit", "8bit", "unsloth", "gptq", "awq", "fp8", "dynamic"))
"""Words in names of models that say how their weights were tuned or stored: the architecture is the same."""
VARIANT = re.compile(
    r"[0-9]+(gb|gib)|pcie|sxm[0-9]*|nvl|hbm[0-9]*|nvidia|amd|intel|apple|google|aws|geforce|tesla|instinct|rtx|radeon|rx|arc"
)
"""Words in names of accelerators for the memory, the board and the maker: products that differ in these alone are variants of one."""
MEMORY = re.compile(r"\b(\d{1,5})[\s-]?(?:gb|gib)\b")
COUNTED = re.compile(
    r"(?:(\d{1,4})(?:\s*[x\xd7*]\s*|(?<!\d{4})\s+(?!gi?b\b|x$))(?=\S))?(.+?)(?:(?:(?<=[\s\d])[x\xd7*]|:)\s*(\d{1,4}))?", re.IGNORECASE
)
"""A number of devices before the name of an accelerator, as in `8 x H100` or `8 H100`, or after it, as in `H100:8`."""
SEVERAL = re.compile(r"(.*\d)s", re.IGNORECASE)
"""Several of a kind, as in `H100s`; the last letter of `L40S` is a part of its name."""
TPU_SLICE = re.compile(r"(?:cloud |google )?(?:tpu[ -]?)?(v\d[ep]?)(?:litepod|pod)?-(\d{1,4})", re.IGNORECASE)
"""A slice of a TPU by its name in Google Cloud, such as `v5e-8`."""
MACHINE = re.compile(r"\b(mac ?book (pro|air)|mac (studio|mini|pro)|imac|nvl\d+|free|(google )?colab( pro)?|kaggle)\b", re.IGNORECASE)
"""Machines that an accelerator is built into, or where it is used."""
DEVICE_WORD = re.compile(r"(?:rtx|gtx|rx)(?=\d)|\d{4}(?=ti|super|xtx?|ada|laptop)|ti(?=super)|[0-9a-z]+")
"""A word in the name of an accelerator in lower case, also where no space follows it, as in `rtx4070tisuper`."""
MODELS_APART = frozenset(("max", "pro", "ultra", "ti", "super", "xt", "xtx", "gre", "mini", "laptop"))
"""Words that tell models of one number apart: a name without them is not theirs."""
APART = r"[ae]?(\d+x)?\d+(\.\d+)?[bm]|.*(draft|eagle|embed|mamba|medusa|minitron|moe|omni|prune|specul|vision).*|vl"
"""Words in names of models that tell architectures apart: sizes, and what was added to a model or taken from it."""
SIZE = r"[ae]?(\d+(?:\.\d+)?)([bm])"
"""Size of a model as a word of its name."""
LONGEST_NAME = 200
"""Letters of a name that count; the hub allows 96 for an owner and for a model."""
MOST_SUGGESTED = 6
NOT_MODELLED: list[dict[str, str]] = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))["not_modelled"]
"""Architectures that people ask for and that are not modelled, with the reason."""
USUAL_SIZE = "a size alone, such as 13B, is answered with a usual model of that size"
CPU_NOISE = re.compile(r"\(r\)|\(tm\)|[®™]|\b\d+th gen\b|\bcpu\b|\bprocessor\b|\b\d+-cores?\b|\bwith radeon\b.*|@.*", re.IGNORECASE)
"""Words in a CPU's reported name that do not identify its model."""
CORE_OF_CHIP = " core (1 of "
"""After the chip in the name of one of its cores, which so has no card: the card's peak and price are those of the chip."""
MEMORY_TOLERANCE = 0.15
"""Relative difference between a printed memory and that of the card: GB against GiB, and driver reservations."""
LIST_HINT = '`tunemark query "select accelerator, aliases from accelerators"` lists all'


def spellings(cards: Iterable[AcceleratorCard | ModelCard]) -> dict[str, tuple[str, ...]]:
    """Return all spellings of each card by its key, so that a card is suggested once."""
    return {card.key: (card.key, card.name, *card.aliases) for card in cards}


def words_of(name: str) -> list[str]:
    """Return the words of a model's name without its owner and words for a variant: "Qwen/Qwen3-14B-Instruct" is ["qwen3", "14b"]."""
    # An underscore between digits stands for a point: phi-1_5.
    words = re.split(r"(?:[^0-9a-z._]|(?<![0-9])_|_(?![0-9](?![0-9a-z])))+", name.lower().split("/")[-1])
    return [word.replace("_", ".") for word in words if word and word not in VARIANTS]


def model_keys(cards: Iterable[ModelCard]) -> dict[str, str]:
    """Return the key of each model by its spellings, and by their words in one where that is one model; see `key_of_model`."""
    named = [(card.key, name) for card in cards for name in (card.key, card.name, *card.aliases)]
    # The models of smoke tests have no weights: only their own key means them.
    smoke = {card.key for card in cards if card.key.startswith("tiny-")}
    alike: dict[str, set[str]] = {}
    for key, name in named:
        if key not in smoke:
            alike.setdefault("".join(words_of(name)), set()).add(key)
    return {name: next(iter(keys)) for name, keys in alike.items() if len(keys) == 1} | {name.lower(): key for key, name in named}


def key_of_model(keys: Mapping[str, str], name: str) -> str | None:
    """Return the key of a model by a spelling, or of the only model that is named so in part; None for an unknown name.

    The name of a fine-tuned model holds that of its base, with all words that tell architectures apart; the longest such spelling counts.
    """
    named = words_of(name[:LONGEST_NAME])
    known = [name.lower()]
    # A date is a part of few names.
    for words in (named, [word for word in named if not re.fullmatch(r"\d{4}", word)]):
        apart = [place for place, word in enumerate(words) if re.fullmatch(APART, word)]
        starts, ends = (range(apart[0] + 1), range(apart[-1] + 1, len(words) + 1)) if apart else (range(0), range(0))
        runs = ["".join(words[start:end]) for start in starts for end in ends]
        known += ["".join(words), *sorted(runs, key=lambda run: -len(run))]
    found = next((keys[spelling] for spelling in known if spelling in keys), None)
    fitting = [] if found or "/" in name or not_modelled(name) else fitting_keys(keys, name)
    return fitting[0] if len(fitting) == 1 else found


def words_of_device(name: str) -> set[str]:
    """Return the words of the name of an accelerator in lower case, without its memory and the machine around it."""
    return set(DEVICE_WORD.findall(MACHINE.sub(" ", MEMORY.sub(" ", name.lower()))))


def memory_in(name: str) -> float | None:
    """Return the memory in the name of an accelerator in GB or GiB, or None."""
    found = MEMORY.search(name.lower())
    return float(found[1]) if found else None


def fitting_keys(keys: Mapping[str, str], name: str) -> list[str]:
    """Return the keys of the models whose spelling holds all words of a name, the shortest first."""
    words = words_of(name[:LONGEST_NAME])
    fitting = {key for spelling, key in keys.items() if words and all(word in words_of(spelling) for word in words)}
    return sorted(fitting, key=lambda key: (len(key), key))


def _row_of(name: str) -> dict[str, str]:
    """Return the row of an architecture, by a name or model type, that is not modelled; empty for others."""
    words = f"-{'-'.join(words_of(name[:LONGEST_NAME]))}-"
    return next((row for row in NOT_MODELLED if re.fullmatch(f".*-({row['asked']})-.*", words)), {})


def not_modelled(name: str) -> str:
    """Return the reason for which no card has the architecture of a name or model type; "" if none is known."""
    why = _row_of(name).get("why")
    return f"{why}; this is not modelled" if why else ""


def instead_of(name: str) -> str:
    """Return the advice for a model that is not modelled."""
    return _row_of(name).get("instead", USUAL_SIZE)


def suggest_card(name: str, cards: Collection[ModelCard]) -> str:
    """Return a sentence that suggests the most similar models, or the reason for which there is none."""
    if why := not_modelled(name):
        return f"{why}; {instead_of(name)}"
    near = fitting_keys(model_keys(cards), name)[:MOST_SUGGESTED] or _other_sizes(cards, name)[:3] or nearest(name, spellings(cards))
    return suggested(near) if near else f'none of the {len(cards)} known names is similar; `tunemark query "from models"` lists them'


def _other_sizes(cards: Iterable[ModelCard], name: str) -> list[str]:
    """Return the models whose key begins as a name does before its size, the nearest size first; none for a name without one."""

    def parts(spelling: str) -> tuple[str, float]:
        words = words_of(spelling)
        sizes = [re.fullmatch(SIZE, word) for word in words]
        size = next((float(each[1]) * (1 if each[2] == "b" else 0.001) for each in sizes if each), 0.0)
        return "".join(word for word, each in zip(words, sizes, strict=True) if not each), size

    family, wanted = parts(name)
    known = [(*parts(card.key), card.key) for card in cards]
    exact = family
    if not any(start.startswith(family) for start, *_ in known):
        family = re.sub("[0-9.]+$", "", family)
    found = sorted((start != exact, abs(size - wanted), key) for start, size, key in known if start.startswith(family))
    return [key for _, _, key in found] if family and wanted else []


def suggest_accelerator(name: str, cards: Mapping[str, AcceleratorCard], instances: Collection[str] = ()) -> str:
    """Return a sentence that suggests accelerators and instances, or corrects the memory size in a known name."""
    if re.search(r"\b(cpu|ryzen|xeon|epyc|threadripper|core (i\d|ultra))\b", name, re.IGNORECASE):
        return "predictions are for accelerators, not for CPUs: `tunemark run smoke-lora` measures one"
    if re.search(r"\b(i?mac|macbook|mac ?mini)\b", name, re.IGNORECASE):
        return "name the chip of the Mac and its memory, such as 'M4 Pro 24GB'"
    if instances and AWS.fullmatch(name.strip().lower()):
        return suggest_instance(name, instances)
    known = (card for card in cards.values() if bare(MEMORY.sub("", name.lower())) in map(bare, (card.key, card.name, *card.aliases)))
    if (memory := memory_in(name)) is not None and (card := next(known, None)) and not agrees(memory, card):
        return f"the {card.name} has {card.memory_gib:g} GB, not {memory:g}; {suggested([min((card.name, *card.aliases), key=len)])}"
    near = nearest(name, spellings(cards.values()) | {instance: (instance,) for instance in instances})
    return suggested(near) if near else f"none of the {len(cards)} known accelerators is similar; {LIST_HINT}"


def suggest_instance(name: str, instances: Collection[str]) -> str:
    """Return a sentence that suggests instances, of the same family if it has any."""
    family = [instance for instance in instances if instance.startswith(f"{name.lower().partition('.')[0]}.")]
    near = nearest(name, {instance: (instance,) for instance in family or instances}, most=2)
    return suggested(near) if near else f"none of the {len(set(instances))} known instances is similar"


def sold_with(card: AcceleratorCard, memory_gib: float) -> bool:
    """Return True if an accelerator can have a memory: one chip of Apple is sold with several."""
    return agrees(memory_gib, card) or (card.vendor == APPLE and memory_gib <= (card.memory_gib or 0))


def with_memory(card: AcceleratorCard, memory_gib: float | None) -> AcceleratorCard:
    """Return the card of a Mac with this memory, which its key holds too; another card as it is."""
    if card.vendor != APPLE or memory_gib is None:
        return card
    sold = {"key": f"{card.key}+{memory_gib:g}gb", "name": f"{card.name} with {memory_gib:g} GB", "memory_gib": memory_gib}
    return card.model_copy(update=sold)


def product_of(card: AcceleratorCard) -> str:
    """Return the key by which results know an accelerator, whatever the memory of a Mac."""
    return card.key.partition("+")[0]


def agrees(memory_gib: float, card: AcceleratorCard) -> bool:
    """Return True if a printed memory can be that of a card. A card of unknown memory agrees with any."""
    return card.memory_gib is None or abs(memory_gib - card.memory_gib) <= MEMORY_TOLERANCE * card.memory_gib


def cpu_name(reported: str) -> str:
    """Return the words of a CPU's reported name that identify it, in lower case.

    "Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz" becomes "intel xeon platinum 8375c".
    """
    return " ".join(CPU_NOISE.sub(" ", reported).lower().split())
