"""The frontier: found exactly, in few tries, and only from runs that show whether memory sufficed."""

from hypothesis import given
from hypothesis import strategies as st
from study_making import FACTS, ScriptedBench

from tunemark.harness.plan.resolve import Options
from tunemark.harness.studies.frontier import Frontier, FrontierQuestion, Over, find_largest
from tunemark.schema.vocabulary import Phase, Status

PLAIN = FrontierQuestion()


def fits_tokens(most):
    return lambda plan, _ran: {
        "status": Status.OK if plan.batch.micro_batch * plan.data.sequence_length <= most else Status.OOM_HOST,
        "steps": 3,
    }


def frontier(scripted, question=PLAIN, workload="smoke-lora", **options):
    return Frontier.of(workload, Options(**options), scripted.bench, question)


@given(st.integers(0, 3000), st.integers(1, 4000), st.integers(1, 4000))
def test_the_largest_that_fits_is_found_with_few_questions(edge, start, most):
    asked = []
    found = find_largest(lambda number: asked.append(number) or number <= edge, start, most)
    assert found.fits == (min(edge, most) or None)
    assert found.fails == (edge + 1 if edge < most else None)
    assert len(asked) == len(set(asked)) <= 26


def test_the_largest_micro_batch_and_the_first_that_failed_are_found(tmp_path):
    scripted = ScriptedBench(tmp_path, fits_tokens(128 * 11))
    search = frontier(scripted)
    assert search.search() is None
    (edge,) = search.edges
    assert (edge.sequence_length, edge.micro_batch, edge.first_failed) == (128, 11, "12 rows")
    assert edge.tries == len(scripted.ran) == 6
    assert edge.peak_memory_bytes > 0


def test_a_limit_that_the_libraries_alone_exceed_ends_the_search_with_that_reason(tmp_path):
    scripted = ScriptedBench(tmp_path, lambda _plan, _ran: {"status": Status.OOM_HOST, "phase": Phase.IMPORT})
    ended = frontier(scripted, FrontierQuestion(limit_bytes=2**27)).search()
    assert ended.startswith("the libraries alone could not be loaded with --limit-memory 0.125 GiB for each process (")
    assert ended.endswith("; raise the limit")
    assert len(scripted.ran) == 1


def test_longer_rows_begin_where_as_many_tokens_fitted(tmp_path):
    scripted = ScriptedBench(tmp_path, fits_tokens(128 * 64))
    search = frontier(scripted, FrontierQuestion(lengths=(256, 128, 512)))
    search.search()
    assert [(edge.sequence_length, edge.micro_batch) for edge in search.edges] == [(128, 64), (256, 32), (512, 16)]
    assert search.edges[1].tries <= 7 < search.edges[0].tries


def test_the_longest_sequence_is_found_within_the_models_context(tmp_path):
    search = frontier(ScriptedBench(tmp_path, fits_tokens(4 * 300)), FrontierQuestion(over=Over.SEQUENCE_LENGTH))
    search.search()
    assert [(edge.sequence_length, edge.micro_batch, edge.first_failed) for edge in search.edges] == [(256, 4, "320 tokens")]
    unlimited = frontier(ScriptedBench(tmp_path / "all", fits_tokens(10**9)), FrontierQuestion(over=Over.SEQUENCE_LENGTH))
    unlimited.search()
    assert unlimited.edges[0].sequence_length == FACTS.model("tiny-llama").context_length


def test_both_gives_the_micro_batch_at_each_length_that_fits(tmp_path):
    search = frontier(ScriptedBench(tmp_path, fits_tokens(500)), FrontierQuestion(over=Over.BOTH))
    search.search()
    assert [(edge.sequence_length, edge.micro_batch) for edge in search.edges] == [(448, 1), (128, 3), (256, 1)]


def test_a_failure_that_is_not_memory_ends_the_search_with_its_reason(tmp_path):
    search = frontier(ScriptedBench(tmp_path, lambda _plan, ran: {"status": Status.CRASH if ran else Status.OK, "steps": 3}))
    assert "scripted crash" in search.search()


def test_a_stopped_search_resumes_with_its_results(tmp_path):
    def interrupted(plan, ran):
        return {"status": Status.INTERRUPTED} if ran == 3 else fits_tokens(128 * 11)(plan, ran)

    assert "the same command resumes" in frontier(ScriptedBench(tmp_path, interrupted)).search()
    later = ScriptedBench(tmp_path, fits_tokens(128 * 11))
    search = frontier(later)
    assert search.search() is None
    assert search.edges[0].micro_batch == 11
    assert len(later.ran) == 3


def test_the_worker_is_limited_to_a_part_of_the_hosts_memory(tmp_path):
    seen = []
    scripted = ScriptedBench(tmp_path, fits_tokens(10**9))
    run = scripted.bench.runner
    object.__setattr__(scripted.bench, "runner", lambda resolved, study: seen.append(resolved.limit_memory_bytes) or run(resolved, study))
    frontier(scripted, FrontierQuestion(most=1)).search()
    frontier(scripted, FrontierQuestion(most=1, limit_bytes=2**30)).search()
    assert seen == [int(0.8 * scripted.machine.memory_bytes), 2**30]
    assert "memory limited to 1.00 GiB for each process" in scripted.ran[-1]


def test_a_run_that_ends_above_the_limit_does_not_fit(tmp_path):
    # Each scripted run has a peak of half a GiB.
    below = frontier(ScriptedBench(tmp_path / "below", fits_tokens(1024)), FrontierQuestion(limit_bytes=2**28))
    below.search()
    assert below.edges[0].micro_batch is None
    above = frontier(ScriptedBench(tmp_path / "above", fits_tokens(1024)), FrontierQuestion(limit_bytes=2**30))
    above.search()
    assert above.edges[0].micro_batch == 8
