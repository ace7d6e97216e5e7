"""Studies: pages made of queries and a template. A finding rests on at least two results, and disappears with them."""

import html
import re
import shutil
import struct
from collections.abc import Callable
from datetime import date
from importlib import resources
from pathlib import Path

import duckdb
import pytest
from factories import assert_golden
from fixture_database import AB, MEASURED

from tunemark.collector.store.loading import collect
from tunemark.schema.errors import TunemarkError
from tunemark.schema.statistics.intervals import share_error
from tunemark.site import heads, share, studies
from tunemark.site.database import Database
from tunemark.site.page import Page
from tunemark.site.pages import FOLDER, STUDY_DEFAULTS, runner
from tunemark.site.records import Catalogue
from tunemark.site.render import markdown
from tunemark.site.sql_page import LEAST, OPEN_SENTENCES, Runner, page_files
from tunemark.site.text import escape

AS_OF = date(2026, 11, 22)
GOLDEN = Path(__file__).parent / "golden"
FINDING = re.compile(r'<div class="tm-study-finding">\n<p>(.*?)</p>(.*?)</div>', re.DOTALL)
X = "\N{MULTIPLICATION SIGN}"
LINK = re.compile(r'href="[^"]*results/([^"/]+?)\.html"')
Findings = dict[str, list[tuple[str, set[str]]]]
"""The findings of each study, as text with its citations."""


@pytest.fixture(scope="session")
def documents(few_documents: Path, make_once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """Return the database of a few real documents."""
    return make_once("study_documents", lambda folder: collect(few_documents, folder / "studies.duckdb", as_of=AS_OF)) / "studies.duckdb"


@pytest.fixture(scope="module")
def catalogue(documents: Path) -> Catalogue:
    """Return the catalogue of the few documents."""
    return Catalogue(Database(documents))


@pytest.fixture(scope="module")
def shown(catalogue: Catalogue) -> dict[str, Page]:
    """Return the studies of the few documents and their index by path."""
    listed, made = list[Page](), runner(catalogue)
    for file in [*page_files(resources.files(studies), **STUDY_DEFAULTS), *(each for each in page_files(FOLDER) if each.name == "studies")]:
        listed += made.family(file, listed_pages=listed)
    return {page.path: page for page in listed if page.path.startswith("studies/")}


@pytest.fixture(scope="module")
def made(shown: dict[str, Page]) -> dict[str, str]:
    """Return the Markdown of the studies by key."""
    return {path.removeprefix("studies/"): markdown(page) for path, page in shown.items() if path != "studies/index"}


@pytest.fixture
def edited(documents: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that returns a copy of the database after some statements."""
    return lambda *statements, of=documents: after(of, tmp_path / "edited.duckdb", *statements)


def after(database: Path, copy: Path, *statements: str) -> Path:
    shutil.copy(database, copy)
    with duckdb.connect(str(copy)) as connection:
        for statement in statements:
            connection.execute(statement)
    return copy


def written(database: Path, folder: Path | None = None) -> dict[str, str]:
    """Return the Markdown of all studies by key."""
    with Database(database) as opened:
        pages = Runner(opened).pages(folder or resources.files(studies), **STUDY_DEFAULTS)
        return {page.path.removeprefix("studies/"): markdown(page) for page in pages}


def findings(made: dict[str, str]) -> Findings:
    return {key: [(html.unescape(text), set(LINK.findall(links))) for text, links in FINDING.findall(page)] for key, page in made.items()}


def rows(database: Path, query: str) -> list[dict[str, object]]:
    with Database(database) as opened:
        return opened.rows(query)


# The studies of the committed documents ------------------------------------------------------------


def test_every_study_has_findings_and_each_cites_at_least_two_results(made: dict[str, str], documents: Path) -> None:
    known = {row["result_id"] for row in rows(documents, "select result_id from results")}
    files = {file.name for file in page_files(resources.files(studies))} - {"series"}
    assert set(made) == files
    for key, found in findings(made).items():
        assert found, key
        assert all(len(cited) >= LEAST and cited <= known for _, cited in found), key


@pytest.mark.parametrize("key", ["small-batches", "bert-tuning", "methods", "scaling", "guide-recomputed", "tips", "memory"])
def test_the_findings_of_a_study_are_as_they_were(made: dict[str, str], key: str) -> None:
    assert_golden(GOLDEN / f"study-{key}.txt", "".join(f"{text}\n" for text, _ in findings(made)[key]))


def test_no_finding_rests_on_a_deleted_result_or_on_a_refuted_figure(
    made: dict[str, str], documents: Path, edited: Callable[..., Path]
) -> None:
    impossible, gone = (
        {row["result_id"] for row in rows(documents, f"select result_id from results where {condition}")}  # noqa: S608 - our own condition
        for condition in ("impossible", "source in ('001', '003')")
    )
    cited = set().union(*(ids for found in findings(made).values() for _, ids in found))
    assert impossible
    assert cited & gone
    # A check of printed arithmetic covers impossible results too, and its finding names them as such.
    found = [item for each in findings(made).values() for item in each if "impossible as printed" not in item[0]]
    assert not impossible & set().union(*(ids for _, ids in found))
    assert any("002-001" in ids for _, ids in findings(made)["scaling"])
    refuted = "update findings set verdict = 'impossible', record_ids = ['002-001'], quantities = ['wall_s'] where finding = (select min(finding) from findings)"
    left = findings(written(edited("delete from result_rows where source in ('001', '003')", refuted)))
    assert all(not ids & gone and len(ids) >= LEAST for found in left.values() for _, ids in found)
    assert left["scaling"]
    assert not any("002-001" in ids for _, ids in left["scaling"])


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("trainium", f"{453.02 / 82.20:.2f}{X} on Trainium"),
        ("training-cost", f"${2048 / 4650 / 3600 * 1e6 * 0.34:.2f} for Llama 2 7B, QLoRA, GeForce RTX 4090 (printed: $12"),
    ],
)
def test_a_figure_of_a_study_with_prices_follows_from_the_printed_ones(made: dict[str, str], key: str, words: str) -> None:
    assert any(words in text for text, _ in findings(made)[key])


def test_pairs_of_methods_differ_in_nothing_else_that_is_stated(documents: Path) -> None:
    same = (
        "model",
        "source",
        "accelerator",
        "accelerator_count",
        "sequence_length",
        "micro_batch",
        "precision",
        "padding",
        "packing",
        "strategy",
    )
    differ = " or ".join(f"a.{name} is distinct from b.{name}" for name in same)
    pairs = f"from method_pairs p join results a on a.result_id = p.result_id join results b on b.result_id = base_result_id where {differ} or a.method = b.method"
    assert rows(documents, "from method_pairs")
    assert not rows(documents, f"select p.result_id {pairs}")


def test_the_index_lists_studies_before_series(shown: dict[str, Page]) -> None:
    text = markdown(shown["studies/index"])
    assert len(shown) > 1
    assert all(text.index(escape(page.title)) < text.index("Series of runs") for path, page in shown.items() if path != "studies/index")


def test_a_study_begins_with_its_main_point_and_chart_and_shows_five_sentences(made: dict[str, str]) -> None:
    assert re.search(r"^# \d+ of \d+ speeds in a published GPU guide are impossible$", made["guide-recomputed"], re.MULTILINE)
    for key, page in made.items():
        assert "<figure" not in page or page.index("<figure") < page.index("## Findings"), key
        assert "<table" not in page.partition("## Findings")[0], key
        shown = [text for text, _ in findings({key: page.partition("further finding")[0]})[key]]
        assert 0 < sum(len(re.findall(r"[.?!](?=\s|$)", text)) for text in shown) <= OPEN_SENTENCES, (key, shown)


def test_a_long_first_finding_is_cut_after_five_sentences_and_the_next_is_folded_whole(documents: Path, tmp_path: Path) -> None:
    long, short = " ".join(f"Sentence {number}." for number in range(1, 8)), "Another finding."
    calls = "".join(f"{{% call finding(steps) %}}{text}{{% endcall %}}\n" for text in (long, short))
    head = "title = 'Long'\nquestion = 'How long?'\n[queries]\nsteps = \"from results where source = '002'\"\n"
    (tmp_path / "long.md.j2").write_text(f"+++\n{head}+++\n{calls}", encoding="utf-8")
    shown, _, folded = written(documents, tmp_path)["long"].partition("2 further findings")
    texts = [[text for text, _ in findings({"": part})[""]] for part in (shown, folded)]
    assert texts == [[long.partition(" Sentence 6")[0]], ["Sentence 6. Sentence 7.", short]]


@pytest.mark.parametrize(
    ("key", "title"),
    [
        (
            "trainium",
            rf"Per device at the prices of AWS, BERT base \(uncased\) trains faster than on Trainium: .+ on A100 SXM4 80GB for 1\.21{X} the cost",
        ),
        ("training-cost", r"10 epochs of Llama 2 7B with LoRA on A100 SXM4 80GB cost \$[\d.]+ at .+ per accelerator in use"),
    ],
)
def test_a_title_with_costs_names_what_is_compared(shown: dict[str, Page], key: str, title: str) -> None:
    assert re.fullmatch(title, shown[f"studies/{key}"].title)


def test_a_whole_instance_is_never_compared_with_one_device_without_its_size(made: dict[str, str]) -> None:
    sentence = next(text for text, _ in findings(made)["trainium"] if "alone the order is reversed" in text)
    assert re.search(rf"per device, an epoch on .+ costs 1\.21{X} that on Trainium.+ has 8 devices and is rented whole", sentence)


# Series of runs ------------------------------------------------------------------------------------


def test_accuracies_of_two_arms_within_two_standard_errors_do_not_differ(database: Path, edited: Callable[..., Path]) -> None:
    judged = [
        f"update result_rows set accuracy = {accuracy}, accuracy_se = {share_error(accuracy, 200)}, evaluation_rows = 200 where study_point like '{arm}: %'"  # noqa: S608 - our own values
        for arm, accuracy in (("a", 0.8), ("b", 0.84))
    ]
    text = written(edited(*judged, of=database))[AB]
    assert "Accuracy: no significant difference" in text
    assert "standard error 2.8 points" in text


def test_the_title_of_a_result_names_its_fp8_weights(database: Path, edited: Callable[..., Path]) -> None:
    """Two results of one workload had one title, and the search did not find fp8."""
    weights = f"update result_rows set fp8 = 'frozen weights' where result_id = '{MEASURED}'"  # noqa: S608 - our own id
    (row,) = rows(edited(weights, of=database), f"select title from listed_results where result_id = '{MEASURED}'")  # noqa: S608 - our own id
    assert ", LoRA, fp8 frozen weights, " in str(row["title"])


# The runner ----------------------------------------------------------------------------------------


def test_a_new_study_is_one_file(documents: Path) -> None:
    text = written(documents, Path(__file__).with_name("new_study"))["losses"]
    ((finding, cited),) = findings({"losses": text})["losses"]
    assert finding == "The losses are 0.03 and 0.13."
    assert cited == {"002-001", "002-002"}
    assert "## Losses" in text
    assert "<b>" not in text, "what a template shows is escaped"
    assert 'href="../results/002-001.html"' in text


def test_a_file_with_a_query_for_each_page_is_a_family_of_pages(documents: Path) -> None:
    with Database(documents) as opened:
        pages = list(Runner(opened).pages(Path(__file__).with_name("new_family")))
        texts = [markdown(page) for page in pages]
    assert [(page.path, page.title) for page in pages] == [
        ("documents/002/count", "Results of 002"),
        ("documents/003/count", "Results of 003"),
    ]
    assert "2 results" in texts[0]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("no description", "begin the file with its description"),
        ("+++\ntitle = 1 +\n+++\n", "is not TOML"),
        ("+++\npath = 'x'\ntitle = 'X'\nqueries.rows = 'select nothing'\n+++\n", "nothing"),
        ("+++\npath = 'x'\ntitle = 'X'\n+++\n{{ unknown }}", "'unknown' is undefined"),
    ],
)
def test_a_faulty_page_is_named_with_its_fault(documents: Path, tmp_path: Path, text: str, error: str) -> None:
    (tmp_path / "faulty.md.j2").write_text(text, encoding="utf-8")
    with pytest.raises(TunemarkError, match=r"faulty\.md\.j2") as raised:
        written(documents, tmp_path)
    assert error in str(raised.value)


def test_a_study_has_its_own_picture_its_charts_to_embed_and_a_citation(shown: dict[str, Page], catalogue: Catalogue) -> None:
    studies_with_charts = [page for page in shown.values() if share.charts_of(page)]
    assert len(studies_with_charts) > 3
    for page in studies_with_charts[:3]:
        files = dict(share.pictures(page, catalogue.url))
        picture = files.pop(f"{page.path}.png")
        assert (picture[:8], struct.unpack(">II", picture[16:24])) == (b"\x89PNG\r\n\x1a\n", (share.WIDTH, share.HEIGHT))
        assert heads.head_of(page, catalogue.url).picture == f"{page.path}.png"
        text = html.unescape(markdown(page))
        assert f"@misc{{tunemark-{page.path.rpartition('/')[2]}," in text
        assert len(files) == len(share.charts_of(page))
        for path, chart in files.items():
            assert f'<img src="{catalogue.url}{path}"' in text
            assert not re.search(r"var\(|currentColor|<script", chart.decode())
