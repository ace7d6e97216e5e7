"""The page of each device family: its commands exist, and it says what was never run."""

import shlex
from dataclasses import replace

import pytest
from fixture_database import ROOT
from typer.testing import CliRunner

from tunemark.cli import app
from tunemark.schema.facts.fact_base import FactBase
from tunemark.schema.vocabulary import Backend
from tunemark.site.page import Page
from tunemark.site.pages.device_coverage import unproven
from tunemark.site.pages.device_setup import FIRST, SETUPS
from tunemark.site.queries import Catalogue
from tunemark.site.render import markdown

PATHS = {backend: f"guide/measure-{setup.path}" for backend, setup in SETUPS.items()}


def commands(backend: Backend) -> list[list[str]]:
    """Return the words of each Tunemark command of a page."""
    setup = SETUPS[backend]
    lines = [*(line.format(workload=setup.workload) for line in FIRST), *filter(None, [setup.several])]
    return [shlex.split(line, comments=True)[1:] for line in lines]


def test_each_device_family_has_a_page_that_the_guide_lists(pages: dict[str, Page]) -> None:
    assert set(SETUPS) == set(Backend) - {Backend.FAKE}
    listed = [path for _, path in pages["guide/index"].context["listed"]]  # type: ignore[attr-defined]
    assert set(PATHS.values()) <= set(listed)


@pytest.mark.parametrize("backend", SETUPS)
def test_each_command_of_a_page_exists_with_its_options_and_workload(backend: Backend) -> None:
    workloads = FactBase(ROOT / "data").workloads
    for name, *words in commands(backend):
        shown = CliRunner().invoke(app, [name, "--help"])
        assert shown.exit_code == 0, name
        assert [word for word in words if word.startswith("--") and word not in shown.output] == []
        if name == "run":
            assert words[0] in workloads


@pytest.mark.parametrize("backend", SETUPS)
def test_the_container_of_a_page_is_in_the_checkout(backend: Backend) -> None:
    files = {word for line in SETUPS[backend].container for word in line.split() if word.endswith(".Containerfile")}
    assert len(files) == bool(SETUPS[backend].container)
    assert all((ROOT / file).is_file() for file in files)


def test_a_family_that_was_never_measured_says_so_first(pages: dict[str, Page]) -> None:
    text = markdown(pages[PATHS[Backend.ROCM]])
    assert text.index("never run on such a device") < text.index("## Install")
    assert "Nothing on this page has been run" in text.partition("## What was never run")[2]
    assert "never run on such a device" not in markdown(pages[PATHS[Backend.CPU]])


def test_what_a_family_refuses_is_shown_with_its_reason(pages: dict[str, Page]) -> None:
    text = markdown(pages[PATHS[Backend.CPU]])
    refused = text.partition("## What is refused there")[2]
    assert "its kernels are for GPUs" in refused


def test_a_measured_family_lists_the_features_that_no_run_has_shown(catalogue: Catalogue) -> None:
    on_gpu = {
        **catalogue.results_where(source="measured")[0],
        "result_id": "gpu",
        "backend": "cuda",
        "status": "ok",
        "attention": "flash_attention_2",
    }
    missing = unproven(replace(catalogue, results=[*catalogue.results, on_gpu]), "cuda")
    assert "FlashAttention 3" in missing
    assert "FlashAttention 2" not in missing
