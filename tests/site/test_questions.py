"""A reader finds the answer to each question in at most two clicks from the home page, in the site of the committed data.

A choice in a field counts as a click. Prices and predicted times change with the data, so they are matched by pattern. Published figures and memory
estimates are matched exactly.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixture_database import served
from playwright.sync_api import Browser
from test_browser import Visit

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
MAX_CLICKS = 2
Step = tuple[str, ...]
"""`tab NAME`, `link NAME` within the page, `field NAME VALUE` of the question, or `evidence`: the first cited result."""

STUDIES: Step = ("tab", "Studies")
MLPERF: Step = ("link", "MLPerf fine-tuning")
TRAINIUM: Step = ("link", "Trainium against GPUs")
MEMORY: Step = ("link", "Memory")
TIME_AND_COST = r"[^*]+?about \$[\d.,]+\s+\$[\d.,]+ to \$[\d.,]+\s+Time\s+about .+\s+.+ to .+"

QUESTIONS: dict[str, tuple[tuple[Step, ...], tuple[str, ...]]] = {
    "cheapest LoRA of Llama 3.1 8B on 10M tokens": (
        (),
        (rf"^Rent .+{TIME_AND_COST}", r"published \d+\s+within error of the predicted cheapest"),
    ),
    "fastest GPU for it": (
        (("field", "objective", "fastest"),),
        (rf"^Rent (B300|B200|GB300|GB200|Instinct MI355X) .+{TIME_AND_COST}", r"(Predicted|From \d+ results)"),
    ),
    "does full fine-tuning of 8B fit in 80 GB": (
        (("field", "method", "full"),),
        (r"Does not fit: [^!]+?H100 SXM5 80GB . 1 \(each device lacks 70\.1 GiB; fits with [a-z-]+\)", r"AdamW states in fp32"),
    ),
    "Trainium or A10G for Qwen3 8B": (
        (STUDIES, TRAINIUM),
        (
            r"Qwen3 8B, LoRA.+\$31\.15 on Trainium . 16.+\$9\.67 on A10G \(AWS\) . 4.+not the same work, so these figures do not rank the devices",
        ),
    ),
    "T4, L4, A100 or trn1 for BERT, per epoch": (
        (STUDIES, TRAINIUM),
        (
            r"that epoch costs \$[\d.]+ on L4 . 1 \(.+\$[\d.]+ on A100 .+\$[\d.]+ on Trainium . 1 \(AWS\) and \$[\d.]+ on Tesla T4",
            r"L4 . 1 \(.+\) and A100 SXM4 80GB . 1 \(.+\) are faster and cheaper than Trainium . 1 \(AWS\)",
        ),
    ),
    "70B LoRA on 8 H100 and 8 B200": ((STUDIES, MLPERF), (r"26\.5 min on H100 SXM5 80GB", r"8\.59 min on B200 SXM")),
    "4 GPUs against 1 for Llama 3 8B": (
        (STUDIES, ("link", "One accelerator compared with several")),
        (
            r"44 h 00 min on A100 SXM4 40GB . 1 and 11 h 08 min on A100 SXM4 40GB . 4, a speed-up of 3\.95. and an efficiency of 98\.8%",
            r"\$161\.63 .+ \$163\.59",
        ),
    ),
    "LoRA or QLoRA on 24 GB": (
        (STUDIES, MEMORY),
        (
            r"LoRA or QLoRA on one accelerator with 24 GB: the largest .+ 9B .+ with LoRA and .+ with QLoRA\. In matched results, QLoRA reaches 0\.\d+. the speed of LoRA",
        ),
    ),
    "why do two results differ": (
        (("tab", "Compare"),),
        (r"What explains the difference", r"Expected together: [\d.]+.\. Left unexplained: a factor of", r"Conditions that differ"),
    ),
    "how trustworthy is a number": (
        (("evidence",),),
        (r"(published|measured|converted)", r"(Audit findings|no finding)", r"(?i)full record", r"Reproduce and cite"),
    ),
    # More questions of the same kinds.
    "cheapest QLoRA of Mistral 7B": (
        (("field", "model", "mistral-7b"), ("field", "method", "qlora")),
        (rf"^Rent .+{TIME_AND_COST}", r"GeForce RTX 4090 . 1[^*]+similar"),
    ),
    "does QLoRA of a 70B model fit on one card of 48 GB": (
        (STUDIES, MEMORY),
        (r"40 to 48 GB: the largest .+ and Code Llama 70B \(68\.98B parameters\) with QLoRA",),
    ),
    "does full fine-tuning of 13B fit on one card of 80 GB": (
        (("field", "model", "llama-2-13b"), ("field", "method", "full")),
        (r"Does not fit: .*H100 SXM5 80GB . [12] ", r"probably: 243 GiB of 256 GiB"),
    ),
    "what runs a 405B model": (
        (("field", "model", "llama-3.1-405b"),),
        (rf"^Rent .+ . (8|16|32|64) .+{TIME_AND_COST}", r"Does not fit: .+ . 8"),
    ),
    "MI300X or H100 for 70B LoRA": ((STUDIES, MLPERF), (r"27\.3 min on Instinct MI300X", r"26\.5 min on H100 SXM5 80GB")),
    "Gaudi 2 or H100 for 70B LoRA": ((STUDIES, MLPERF), (r"27\.2 min on H100 SXM5 80GB and 75\.4 min on Gaudi 2",)),
    "full fine-tuning of 8B on 24 GB": (
        (STUDIES, MEMORY),
        (
            r"24 GB the largest models trained are Llama 3\.1 8B .+ with full fine-tuning \(with settings that save memory; AdamW needs an estimated 150 GiB",
        ),
    ),
    "does flash attention help": ((STUDIES, ("link", "Optimisation tips")), (r"Flash attention",)),
    "how much memory does LoRA save": (
        (STUDIES, ("link", "Full fine-tuning, LoRA and QLoRA")),
        (r"LoRA needs 0\.\d+. .+ the peak memory of full fine-tuning",),
    ),
    "what was measured on H200": (
        (("link", "accelerators with results"), ("link", "H200 SXM 141GB")),
        (r"141 GiB", r"Llama 2 70B", r"\$[\d.]+"),
    ),
}


@pytest.fixture(scope="module")
def address(whole_site: Path) -> Iterator[str]:
    """Serve the site of the committed data and return its address."""
    with served(whole_site / "site") as found:
        yield found


def take(visit: Visit, step: Step) -> None:
    """Do what a reader does with one click."""
    page, (kind, *words) = visit.page, step
    if kind == "field":
        (name, value), before = words, page.locator("#tm-answer").inner_text()
        field = page.locator(f"#tm-question [name={name}]")
        field.fill(value) if name == "model" else field.select_option(value)
        page.wait_for_function("before => document.querySelector('#tm-answer').innerText !== before", arg=before)
    elif kind == "evidence":
        page.locator("#tm-answer a[href^='results/']").first.click()
    elif kind == "tab":
        page.locator(".md-tabs").get_by_role("link", name=words[0], exact=True).click()
    else:
        page.locator("article").get_by_role("link", name=words[0]).first.click()
    page.wait_for_load_state("load")
    if page.locator("#tm-compare").count():
        page.wait_for_selector("#tm-compare[data-ready]")


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_is_at_most_two_clicks_away(question: str, browser: Browser, address: str) -> None:
    steps, answers = QUESTIONS[question]
    assert len(steps) <= MAX_CLICKS
    with Visit(browser, address, "index.html") as visit:
        visit.page.wait_for_function("() => globalThis.tunemark?.answer")
        for step in steps:
            take(visit, step)
        text = visit.page.locator("#tm-answer" if all(step[0] == "field" for step in steps) else "article").inner_text()
        for answer in answers:
            assert re.search(answer, text, re.MULTILINE), f"{answer} is not in: {text[:4000]}"
        assert visit.complaints == []
