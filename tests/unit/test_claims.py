"""README and docs repeat the figures of the claims, which are computed from the files of ``results/``."""

from __future__ import annotations

import re

import pytest
from support.docs import PAGES, generator
from support.folders import RESULTS, ROOT

CLAIMS = generator().CLAIMS
LINKED = re.compile(r" ?\(\[[^\]]*\]\([^()]*\)[^()]*(?:\([^()]*\)[^()]*)*\)")
"""Links to evidence in brackets."""


def folded(text: str) -> str:
    return " ".join(text.split())


SAID = " ".join(LINKED.sub("", folded(page.read_text())) for page in PAGES if page != ROOT / "docs" / "evidence.md")


@pytest.mark.parametrize("claim", CLAIMS, ids=[claim.claim[:60] for claim in CLAIMS])
def test_claim_rests_on_files_and_has_a_place_for_each_figure(claim):
    assert claim.files
    assert [file for file in claim.files if not (RESULTS / file).is_file()] == []
    figures = claim.compute()

    assert all(figures)
    assert claim.figure.count("{}") == len(figures)


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [pytest.param(claim, sentence, id=sentence) for claim in CLAIMS for sentence in claim.repeated],
)
def test_sentence_of_docs_has_the_figures_of_its_claim(claim, sentence):
    assert sentence.format(*claim.compute()) in SAID


def test_results_hold_only_files_that_are_read():
    """A folder named as a whole counts for its files."""
    texts = [path for folder in ("tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    named = "\n".join(path.read_text() for path in [ROOT / "README.md", *PAGES, *texts])
    files = [path.relative_to(RESULTS) for path in RESULTS.glob("*/**/*") if path.is_file()]
    in_claims = {file for claim in CLAIMS for file in claim.files}

    unused = [
        str(file)
        for file in files
        if str(file) not in in_claims
        and str(file.with_suffix("")) not in named
        and f"{file.parent}/*" not in named
        and f"{file.parent}/{file.name.partition('-')[0]}-*" not in named
    ]
    assert unused == []
