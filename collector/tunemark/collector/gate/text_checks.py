"""The policy for text in submissions: which characters and lengths each field may have, and what no field may hold.

Most fields hold names, versions and sentences that the harness writes, in ASCII. Only the message of a failure and the reason of
a replacement may be in any language. Nothing may identify a person or a machine (`schema.privacy`), act on a reader's program, or hide from his eyes.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

from tunemark.schema.privacy import REMEMBERED, identity_leaks, is_hash, texts
from tunemark.schema.records.reading import Problem
from tunemark.schema.safe_text import shortened, terminal


class Policy(NamedTuple):
    """What text a kind of field may hold."""

    fields: re.Pattern[str]
    characters: re.Pattern[str]
    """One character that is allowed; `_is_hidden` applies to all."""
    most: int
    """Largest number of characters."""
    what: str


SIGNS = "®™©µ°±²³×·–—…≤≥≈→"
POLICIES = (
    Policy(re.compile(r"outcome\.message"), re.compile(r"."), 1_000, "a message"),
    # Letters of formulas, in circles and of full width are of no language.
    Policy(
        re.compile(r"supersedes_reason"),
        re.compile(r"[^\n\t\u2460-\u24ff\U0001d400-\U0001d7ff\U0001f100-\U0001f1ff\uff21-\uff3a\uff41-\uff5a]"),
        700,
        "a sentence",
    ),
    Policy(re.compile(r"plan\.data\.template"), re.compile(r"[\x20-\x7e\n\t]"), 1_000, "a template in ASCII"),
    Policy(
        re.compile(
            r"environment\..+|harness\.version|effective\..+|plan\.(?:data\.(?:name|tokenizer)|model\.hub_id|lora\..+)|overrides\.\d+\.field|"
            r".+\.method|evaluation\.split"
        ),
        re.compile(r"[A-Za-z0-9 ®™()@.,_+/:%&'=#*~!\[\]-]"),
        200,
        "a name of ASCII letters, digits and common signs",
    ),
    Policy(re.compile(r".+"), re.compile(rf"[\x20-\x7e{SIGNS}]"), 700, "a sentence in ASCII"),
)
"""The first policy whose fields match counts."""
TRUSTED_HOSTS = (
    r"(?:docs\.|download\.)?pytorch\.org|(?:docs\.|developer\.|forums\.)?nvidia\.com|huggingface\.co|(?:\w+\.)?readthedocs(?:-hosted)?\.(?:io|com)|"
    r"(?:docs\.)?python\.org|(?:www\.)?(?:github|gitlab)\.com|(?:www\.)?deepspeed\.ai|rocm\.docs\.amd\.com|awsdocs-neuron\.readthedocs-hosted\.com|pypi\.org"
)
"""Hosts to which the error messages of libraries refer."""
TAGS = (
    "a|abbr|address|area|article|aside|audio|b|base|blockquote|body|br|button|canvas|center|code|details|dialog|div|embed|fieldset|font|footer|"
    "form|frame|frameset|h[1-6]|head|header|hr|html|i|iframe|img|input|kbd|label|li|link|main|map|marquee|math|menu|meta|nav|noscript|object|"
    "ol|option|p|picture|pre|script|section|select|slot|source|span|style|sub|summary|sup|svg|table|tbody|td|template|textarea|tfoot|th|thead|"
    "title|tr|track|u|ul|video|xmp"
)
ABUSE: dict[str, re.Pattern[str]] = {
    "HTML": re.compile(
        rf"</?(?:{TAGS})(?=[\s/>])|<!--|<!doctype|&(?:#x?[0-9a-f]+|lt|gt|amp|quot|nbsp);|\bon\w+\s*=\s*[\w\"'(]", re.IGNORECASE
    ),
    "an address of a page": re.compile(
        rf"\bdata:[a-z]+/|\bhttps?:/*(?!/*(?:{TRUSTED_HOSTS})(?:[/:?#\s)\].,;'\"]|$))[^\s]|\b(?:javascript|vbscript|data:[a-z]+/|ftp|file(?=:/)|jndi|s3|gs)s?:\S|(?<![\w:])//\w[\w-]*\.\w|\bwww\.",
        re.IGNORECASE,
    ),
    "markup of Markdown": re.compile(r"\]\(|!\[|^\s*#{1,6}\s|```|^\s*\|.*\||\w \| .+ \|\s*$|^\s*[-*_]{3,}\s*$", re.MULTILINE),
    "a template": re.compile(r"\{\{|\{%|\{#|\$\{|__\w+__.*__\w+__|%n%n|<%"),
    "a command of a shell or a database": re.compile(
        r"\$\(|\brm\s+-|\b(?:curl|wget|nc|bash|sh|powershell|cmd)\b.*\|\s*(?:ba)?sh|\|\s*(?:ba|z)?sh\b|\|'|;\s*(?:drop|delete|update)\s+(?:table|from|\w+\s+set)\s|(?:\.\./){2}|&&\s*\w",
        re.IGNORECASE,
    ),
    "words to a language model": re.compile(
        r"\b(?:ignore|disregard|forget|override)\b.{0,20}\b(?:previous|prior|above|earlier|all|your)\b.{0,20}\b(?:instructions?|rules?|prompts?)\b|"
        r"<\|\w+\|>|\byou are (?:now )?(?:a|an|the) (?:helpful |ai )?(?:assistant|language model)\b",
        re.IGNORECASE,
    ),
    "a formula of a spreadsheet": re.compile(r"^\s*(?:=|\+|-(?!\d+(?:$|[\s,:.;)]))|@)\s*[\w\"'(]|^\s*[=@]", re.MULTILINE),
    "a command of GitHub": re.compile(r"^\s*::|##\[|::(?:error|warning|notice|set-|add-|group|stop-|debug)", re.MULTILINE),
    "a mention": re.compile(r"(?:^|[\s(])@[A-Za-z][\w-]+|\b(?:fixes|closes|resolves)\s+#\d", re.IGNORECASE),
    "markup of a terminal": re.compile(
        r"\[/?(?:bold|dim|italic|underline|blink|reverse|strike|red|green|blue|yellow|white|black|link)\b[^\]]*\]", re.IGNORECASE
    ),
}
"""Text that would act on a page, a terminal, a spreadsheet or a workflow. All outputs neutralise it too; no honest record holds it."""
FEWEST_WORDS, FEWEST_LETTERS, FEWEST_SIGNS = 2, 6, 4
"""Words and letters of a reason, or letters of a script outside ASCII."""
MOST_MARKS = 4
"""Combining marks on one letter; the scripts that stack them use two or three."""
JOINERS = "\u200c\u200d"


def text_problems(record: dict[str, Any]) -> Iterator[Problem]:
    """Yield a problem for each text of a submission, as JSON content, that its field may not hold."""
    for field, value, what in identity_leaks(record):
        yield Problem(field, _shown(value), f"looks like {what}; a submission must not name a machine or a person")
    for field, text in texts(record):
        if is_hash(field):
            continue
        found = _first_problem(text, _policy_of(field)) or (_no_sentence(text) if field == "supersedes_reason" else None)
        if found is not None:
            yield Problem(terminal(field), _shown(text), found)


def _no_sentence(text: str) -> str | None:
    """Return the problem of a reason that says nothing. A script without blanks needs fewer letters."""
    letters = [character for character in text if character.isalpha()]
    words = [word for word in re.findall(r"[^\W\d_]+", text) if len(set(word)) > 1]
    short = len(letters) < FEWEST_LETTERS or len(words) < FEWEST_WORDS
    return (
        None if not short or sum(not letter.isascii() for letter in letters) >= FEWEST_SIGNS else "is not a reason; say it in a few words"
    )


def _shown(text: str) -> str:
    return repr(terminal(shortened(text, 60)))


@lru_cache(maxsize=REMEMBERED)
def _policy_of(field: str) -> Policy:
    return next(each for each in POLICIES if each.fields.fullmatch(field))


@lru_cache(maxsize=REMEMBERED)
def _first_problem(text: str, policy: Policy) -> str | None:
    """Return the first thing that a text may not be; records share most of their texts."""
    return next(_found(text, policy), None)


def _found(text: str, policy: Policy) -> Iterator[str]:
    if len(text) > policy.most:
        yield f"has {len(text):,} characters; this field has {policy.most} at most"
        return
    if not text.strip() or text != text.strip(" "):
        yield "begins or ends with blanks, or has nothing else"
    hidden = next((character for index, character in enumerate(text) if _is_hidden(text, index)), None)
    if hidden is not None and not (hidden in "\n\t" and policy.characters.fullmatch(hidden)):
        yield f"contains the character U+{ord(hidden):04X}, which cannot be seen; remove it"
    other = next((character for character in text if not policy.characters.fullmatch(character)), None)
    if other is not None:
        yield f"contains U+{ord(other):04X}; this field is {policy.what}"
    if not text.isascii():
        yield from _disguised(text)
    plain = unicodedata.normalize("NFKC", text)
    for what, pattern in ABUSE.items():
        if pattern.search(plain):
            yield f"contains {what}, which would act where it is shown"


def _is_hidden(text: str, index: int) -> bool:
    """Return True for a character that shows nothing, that changes the direction of others, or that is no character."""
    character = text[index]
    if character.isascii():
        return not character.isprintable()
    if character in JOINERS:
        # Scripts of India and Persia need them between their letters.
        around = text[max(0, index - 1)] + text[min(len(text) - 1, index + 1)]
        return around.isascii() or not all(unicodedata.category(each)[0] in "LM" for each in around)
    if character == "\ufffc":
        # Stands for an object that a text does not have.
        return True
    if character == "\ufe0f":
        # Shows the symbol before it in colour.
        return unicodedata.category(text[max(0, index - 1)]) != "So"
    return unicodedata.category(character) in {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"} or character != terminal(character)


def _disguised(text: str) -> Iterator[str]:
    """Yield words that mix the letters of alphabets that look alike, and stacked marks."""
    for word in re.findall(r"\w+", text):
        alphabets = {unicodedata.name(letter, "").split(" ")[0] for letter in word if letter.isalpha()}
        if len(alphabets & {"LATIN", "CYRILLIC", "GREEK", "CHEROKEE", "ARMENIAN", "COPTIC", "LISU"}) > 1:
            yield f"the word {word!r} mixes letters of alphabets that look alike"
            return
        if alphabets and alphabets <= {"CYRILLIC", "GREEK"} and _latin_twin(word):
            yield f"the word {word!r} is written in letters that look like Latin ones"
            return
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) == "Mn" else 0
        if marks > MOST_MARKS:
            yield "stacks marks on a letter"
            return


TWINS = frozenset("АВЕКМНОРСТХІЅЈΑΒΕΖΗΙΚΜΝΟΡΤΥΧ0123456789")


def _latin_twin(word: str) -> bool:
    """Return True for a word of capitals, or capitals and digits, that all look like Latin ones."""
    return len(word) > 1 and any(character.isdigit() for character in word) and all(character in TWINS for character in word)
