"""The answer on the home page to a usual question. The script of the page answers other questions."""

from tunemark.schema.facts.cards import USUAL_LENGTH
from tunemark.schema.option_rates import LOOPS, Evidence, rates_for, rates_on_stack
from tunemark.schema.recommendation import Question, recommend
from tunemark.schema.recommendation_words import with_software
from tunemark.site import recommend_data
from tunemark.site.answer import answer_html
from tunemark.site.database import Database

USUAL = "llama-3.1-8b"
"""Model of the question that is answered first."""


def first_answer(database: Database) -> str:
    """Return the answer to the usual question as HTML; empty if nothing can be recommended, as with an empty database."""
    evidence, model = Evidence.of_database(database.rows), recommend_data.models(database.rows).get(USUAL)
    if model is None or not evidence.results:
        return ""
    cards, offers = recommend_data.accelerators(database.rows), recommend_data.offers(database.rows)
    question = Question("lora", 10_000_000, USUAL_LENGTH)
    asked = (model, cards, offers, evidence)
    rates = rates_for(question, *asked)
    answer = recommend(question, rates, offers)
    software = with_software(question, answer, rates, offers, LOOPS, lambda stack, asking: rates_on_stack(stack, asking, *asked))
    return answer_html(question, answer, software, {key: card.name for key, card in cards.items()}, every=False) if answer.best else ""
