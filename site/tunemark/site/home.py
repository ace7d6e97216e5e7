"""The answer on the home page to a usual question. The script of the page answers other questions."""

from tunemark.schema.recommendation import Question, recommend
from tunemark.site import recommend_data
from tunemark.site.answer import answer_html
from tunemark.site.database import Database

USUAL = "llama-3.1-8b"
"""Model of the question that is answered first."""
TOKENS, LENGTH = 10_000_000, 2_048


def first_answer(database: Database) -> str:
    """Return the answer to the usual question as HTML; empty if nothing can be recommended, as with an empty database."""
    if USUAL not in {row["key"] for row in recommend_data.models(database)}:
        return ""
    rates, offers = recommend_data.rates(database, USUAL), recommend_data.offers(database)
    question, tuned = (Question("lora", TOKENS, LENGTH, software=software) for software in ("plain", "tuned"))
    answer, faster = (recommend(each, rates, offers) for each in (question, tuned))
    names, cards = recommend_data.rentable(database), recommend_data.workloads(database).get(USUAL, [])
    return answer_html(question, answer, faster, names, cards, every=False) if answer.best else ""
