"""The answer to a question as HTML: the home page arrives with that to the usual question, and its script, translated from here, writes the others."""

import math
import re
from collections.abc import Mapping, Sequence
from html import escape

from tunemark.schema import recommendation_words as words
from tunemark.schema.formats import MISSING, estimated_duration, estimated_usd, significant, usd
from tunemark.schema.recommendation import ANY, OWN, Answer, Option, Question
from tunemark.schema.vocabulary import METHODS
from tunemark.site.time_and_cost import time_and_cost_svg

SHOWN, CITED = 10, 3
HEADS = ("Hardware", "Cost", "Time", "Price", "Memory", "Evidence")
NUMERIC = ("Cost", "Time", "Price")
HINT = (
    "Each point is an option: filled with results of its own, open if predicted. "
    "The line joins the options that no other beats in both time and cost."
)


def answer_html(
    question: Question,
    answer: Answer,
    with_software: Sequence[str],
    accelerators: Mapping[str, str],
    *,
    every: bool,
    model_page: str = "",
    caution: str = "",
    with_stack: str = "",
) -> str:
    """Return the answer: the reader's own hardware first, the best option with its grounds, the options, and what is not known.

    Parameters
    ----------
    with_software
        The best options with other software.
    accelerators
        Names by key; they are linked.
    every
        True to add all further options, folded.
    caution
        A sentence about the model in this question, which stands first.
    with_stack
        The answer with the memory of another software stack; empty without.
    model_page
        The page with all results of the model, which is linked where no option can be recommended.

    """
    parts = [f'<p role="note"><strong>{escape(caution)}</strong></p>'] if caution else []
    own = [line.partition(". ") for line in words.own_hardware(question, answer)]
    stacked = [f"<p>{_sentence(with_stack)}</p>"] if with_stack else []
    parts += [f"<p><strong>{escape(first)}{end.strip()}</strong> {_sentence(rest)}</p>" for first, end, rest in own]
    before, after = (stacked, []) if words.own_without_room(question, answer) else ([], stacked)
    parts += before
    if answer.best is None:
        results = f' <a href="{escape(model_page)}">The page of this model</a> has all its results, if there are any.' if model_page else ""
        parts.append(f'<p class="tm-headline">{_sentence(words.headline(question, answer))}{results}</p>')
    else:
        parts += _best(question, answer, answer.best)
    parts += after
    if answer.best is not None:
        parts.append(_table("Options, best first", answer.ranked[:SHOWN], question))
        if every:
            parts.append(_folded("Further options", answer.ranked[SHOWN:], question))
        elif len(answer.ranked) > SHOWN:
            parts.append(f'<p class="tm-quiet">The first {SHOWN} of {len(answer.ranked):,} options.</p>')
    if every:
        parts.append(_folded("Tight memory, or may exceed a limit", answer.may_exceed[:SHOWN], question))
        parts.append(_folded("Over a limit", answer.exceeding[:SHOWN], question))
    parts.append(_list("With other software", "other-software", [_sentence(line) for line in with_software]))
    unknown = [_with_accelerators(line, accelerators) for line in (words.not_fitting(question, answer), words.unknown(answer)) if line]
    parts.append(_list("What is not recommended or not known", "not-known", unknown))
    notes = [words.startup(question, answer), words.NOT_INCLUDED, *([words.ORDER] if answer.best is not None else [])]
    parts.append(f'<p class="tm-quiet">{escape(" ".join(notes))}</p>')
    return "".join(parts)


def _best(question: Question, answer: Answer, best: Option) -> list[str]:
    """Return the cards of the best option and of the best one with results, the best ones by cost and value, and by time if it counts, and the chart."""
    proven = answer.ranked[answer.picks["proven"]] if "proven" in answer.picks else best
    ends = _ends([*answer.ranked[:SHOWN], proven])
    verb = "Use" if best.offer.provider == OWN else "Rent"
    certainty = words.within_error(best) if best.rank_high > best.rank_low else ""
    cards = [_card(question, best, ends, f"{verb} {words.hardware(best)}", certainty, " tm-headline")]
    if proven != best:
        tie = proven.rank_low <= best.rank_high
        certainty = f"{'within' if tie else 'outside the'} error of the {'predicted ' if best.rate.evidence == 'predicted' else ''}{question.objective}"
        cards.append(_card(question, proven, ends, f"{'Or' if tie else 'With results'}: {words.hardware(proven)}", certainty, ""))
    picks = "".join(_pick(question, answer, pick) for pick, number in answer.picks.items() if answer.ranked[number] not in (best, proven))
    chart = time_and_cost_svg(answer.ranked)
    return [
        f'<div class="tm-cards">{"".join(cards)}</div>',
        f'<dl class="tm-headlines" aria-label="Best options">{picks}</dl>' if picks else "",
        f'<figure class="tm-chart tm-time-cost">{chart}<figcaption>{HINT}</figcaption></figure>' if chart else "",
        '<h2 id="options">Options</h2>',
    ]


def _card(question: Question, option: Option, ends: dict[str, tuple[float, float]], title: str, certainty: str, kind: str) -> str:
    """Return an option as a card: hardware, provider and evidence, cost and time with their intervals, and the rest in small print."""
    name, text = words.badge(option)
    where = "" if option.offer.provider == OWN else f" at {escape(option.offer.provider_name)}"
    ids = option.rate.result_ids[:CITED]
    results = f" Results: {', '.join(_result(each) for each in ids)}." if ids else ""
    costs = _bar(ends["usd"], option.usd, option.usd_low, option.usd_high)
    times = _bar(ends["time"], option.seconds, option.seconds_low, option.seconds_high)
    return (
        f'<div class="tm-card{kind}"><p class="tm-card-title">{escape(title)}{where}{escape(words.with_method(question, option.rate.method))}</p>'
        f'<p class="tm-badges"><span class="tm-badge tm-is-{name}">{escape(text)}</span> {certainty}</p>'
        f"<dl>{_figure('Cost', estimated_usd(option.usd), costs, words.costs(option))}{_figure('Time', estimated_duration(option.seconds), times, words.times(option))}</dl>"
        f'<p class="tm-small-print">{escape(words.place(option))}, {escape(words.hourly(option))}. {escape(words.speed(option))} {escape(words.evidence(option))}{results} '
        f"{_sentence(' '.join(words.needs(option)))}</p></div>"
    )


def _figure(name: str, shown: str, bar: str, interval: str) -> str:
    return f"<div><dt>{name}</dt><dd>{'about ' if bar else ''}{shown}{bar}<small>{interval}</small></dd></div>"


def _ends(options: Sequence[Option]) -> dict[str, tuple[float, float]]:
    """Return the ends of the scales on which the intervals of some options are drawn."""
    return {
        "usd": (min((option.usd_low for option in options if option.usd), default=0.0), max(option.usd_high for option in options)),
        "time": (min(option.seconds_low for option in options), max(option.seconds_high for option in options)),
    }


def _bar(ends: tuple[float, float], middle: float, low: float, high: float) -> str:
    """Return an interval as a bar with a mark at its middle, on a logarithmic scale; none for what costs nothing."""
    if not low:
        return ""
    scale = 100 / math.log(ends[1] / ends[0]) if ends[1] > ends[0] else 0.0
    start, mark, width = math.log(low / ends[0]) * scale, math.log(middle / ends[0]) * scale, math.log(high / low) * scale
    return (
        '<svg class="tm-range" viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true"><path d="M0 3H100"/>'
        f'<rect x="{start:.1f}" y="1" width="{width:.1f}" height="4"/><rect class="tm-mid" x="{mark:.1f}" width="1" height="6"/></svg>'
    )


def _pick(question: Question, answer: Answer, pick: str) -> str:
    option = answer.ranked[answer.picks[pick]]
    time, cost = estimated_duration(option.seconds), estimated_usd(option.usd)
    figure, other = (time, cost) if pick == "fastest" else (cost, time)
    where = escape(f"{other}, {words.hardware(option)}, {option.offer.provider_name}")
    how = f"{METHODS[option.rate.method]}, " if question.method == ANY else ""
    doubt = _small(words.why_later(option, answer.ranked[0])) if pick == question.objective else ""
    return (
        f"<div><dt>{words.PICKS[pick]}</dt><dd>{figure}<small>{where}</small><small>{how}{words.badge(option)[1]}</small>{doubt}</dd></div>"
    )


def _table(name: str, options: Sequence[Option], question: Question) -> str:
    heads = "".join(f'<th scope="col"{_numeric(head)}>{head}</th>' for head in (*HEADS, f"Rank {words.RANKS[question.objective]}"))
    ends = _ends(options)
    rows = "".join(_row(option, question, ends) for option in options)
    return (
        f'<div class="tm-table-box" data-search-exclude><div class="tm-scroll" tabindex="0" role="region" aria-label="{name}">'
        f'<table class="tm-table tm-stacked"><caption class="tm-unseen">{name}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></div>"
    )


def _row(option: Option, question: Question, ends: dict[str, tuple[float, float]]) -> str:
    rate, offer = option.rate, option.offer
    how = f"{METHODS[rate.method]}, " if question.method == ANY else ""
    limits = escape(", ".join(dict.fromkeys((*option.exceeds, *option.limits))))
    rows = f", micro-batch {rate.micro_batch}" if rate.micro_batch else ""
    cells = (
        ("Cost", estimated_usd(option.usd) + _bar(ends["usd"], option.usd, option.usd_low, option.usd_high), words.costs(option)),
        (
            "Time",
            estimated_duration(option.seconds) + _bar(ends["time"], option.seconds, option.seconds_low, option.seconds_high),
            f"{words.times(option)}, {significant(rate.tokens_per_s or 0.0)}\u00a0tokens/s",
        ),
        ("Price", f"{usd(offer.usd_per_hour * option.instances)}/h", escape(offer.effective_on or "")),
        ("Memory", escape(rate.memory or MISSING), f"{words.amounts(rate)}{rows}"),
        ("Evidence", words.badge(option)[1], _cited(option)),
        (f"Rank {words.RANKS[question.objective]}", words.rank(option) or MISSING, limits),
    )
    shown = "".join(f'<td data-head="{head}"{_numeric(head)}>{main}{_small(small)}</td>' for head, main, small in cells)
    return f'<tr><th scope="row">{_accelerator(rate.accelerator, words.hardware(option))}{_small(escape(how + words.place(option)))}</th>{shown}</tr>'


def _cited(option: Option) -> str:
    """Return the results that an option rests on."""
    rate = option.rate
    more = f" and {rate.results - CITED} more" if rate.results > CITED else ""
    return ", ".join(_result(each) for each in rate.result_ids[:CITED]) + more


def _folded(title: str, options: Sequence[Option], question: Question) -> str:
    count = f"{len(options):,}"
    return f'<details class="tm-more"><summary>{title}: {count}</summary>{_table(title, options, question)}</details>' if options else ""


def _list(title: str, name: str, lines: Sequence[str]) -> str:
    items = "".join(f"<li>{line}</li>" for line in lines)
    return f'<h2 id="{name}">{title}</h2><ul>{items}</ul>' if lines else ""


def _small(text: str) -> str:
    return f"<small>{text}</small>" if text else ""


def _numeric(head: str) -> str:
    return ' class="tm-num"' if head in NUMERIC else ""


def _result(result_id: str) -> str:
    return f'<a href="results/{escape(result_id)}.html">{escape(result_id)}</a>'


def _accelerator(key: str, text: str) -> str:
    return f'<a href="accelerators/{escape(key)}.html">{escape(text)}</a>'


def _sentence(line: str) -> str:
    """Return a sentence as HTML, with each command, which is between backticks, as code."""
    return _with_code(escape(line))


def _with_code(html: str) -> str:
    return "".join(f"<code>{part}</code>" if place % 2 else part for place, part in enumerate(html.split("`")))


def _with_accelerators(line: str, accelerators: Mapping[str, str]) -> str:
    """Return a line with each name of an accelerator linked to its page."""
    keys = {name: key for key, name in accelerators.items()}
    names = "|".join(re.escape(name) for name in sorted(keys, key=len, reverse=True))
    parts = re.split(rf"(?<![\w.-])({names})(?![\w.-])", line) if names else [line]
    return _with_code("".join(_accelerator(keys[part], part) if part in keys else escape(part) for part in parts))
