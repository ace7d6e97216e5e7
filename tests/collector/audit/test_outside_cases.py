"""Claims as blog posts, model cards and papers print them: 40 that are wrong in a known way, and 30 that are right.

Each case of `outside_cases.json` is a document of its own. The cases were written before its author had seen the rules; `at_first` is what the
rules of that day gave. What they still give nothing for is in `NOT_REACHED`.
"""

import json
from pathlib import Path

import pytest
from factories import FACTS

from tunemark.collector.audit.evidence import Evidence
from tunemark.collector.audit.load import audited_record
from tunemark.collector.audit.rule import audit
from tunemark.schema.records.published import PublishedResult, SourceDocument

CASES = {case["id"]: case for case in json.loads((Path(__file__).parent / "data" / "outside_cases.json").read_text(encoding="utf-8"))}
NOT_REACHED = {
    "B03": "a roof is compared with its points, not with the card",
    "B05": "the dataset has no known length of rows",
    "B12": "below the limit that sharding explains",
    "B14": "a document that is packed may be longer than a row",
    "B23": "advice is compared with the tables of its document only",
    "B27": "model cards have no day of release",
    "B40": "the saved adapter may hold the embeddings too",
}


def verdicts(case):
    results = [PublishedResult.model_validate(record) for record in case["results"]]
    document = {"id": "900", "title": "T", "summary": "S", "licence": "CC0-1.0", "results": len(results), "read_on": "2026-11-25"}
    source = SourceDocument.model_validate(document | {name: case[name] for name in ("stated_on", "statements")})
    found = audit(Evidence(tuple(audited_record(record, FACTS) for record in results), (source,), FACTS))
    return {finding.verdict.value for finding in found}


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_claim_is_found_and_a_right_one_is_left_alone(name):
    given = verdicts(CASES[name]) - {"ambiguous"}
    assert bool(given) is (CASES[name]["verdict"] != "ok" and name not in NOT_REACHED), given
