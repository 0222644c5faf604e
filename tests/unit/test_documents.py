"""The documents: links lead somewhere, README is short, every decision is in the index."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.builders import a_batch, a_lake, a_stamp, write
from tests.support.process import REPOSITORY
from tests.unit.test_runbook import anchors

README = REPOSITORY / "README.md"
DECISIONS = REPOSITORY / "docs/decisions"
ROOT = [README, REPOSITORY / "CHANGELOG.md", REPOSITORY / "CONTRIBUTING.md"]
DOCUMENTS = [*ROOT, *sorted((REPOSITORY / "docs").rglob("*.md"))]
EXTERNAL = re.compile(r"[a-z]+:")


def prose(text: str) -> str:
    """A document without what stands in code: there, brackets are no links and `#` begins no heading."""
    without_blocks = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", without_blocks)


def links(document: Path) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(document.read_text()))
    return [target for target in targets if not EXTERNAL.match(target)]


def headings(document: Path) -> list[str]:
    return anchors(re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL))


def named(document: Path) -> str:
    return str(document.relative_to(REPOSITORY))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    for target in links(document):
        path, _, place = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        assert not place or place in headings(file), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_no_two_headings_have_one_anchor(document: Path) -> None:
    if document.name == "CHANGELOG.md":
        return
    found = headings(document)
    assert sorted(set(found)) == sorted(found)


def test_links_are_found_and_code_is_none() -> None:
    assert "docs/concepts/ledger.md" in links(README)
    assert "[a](b)" not in prose("`[a](b)`\n```\n[a](b)\n```\n")


def test_readme_is_read_in_five_minutes() -> None:
    assert len(README.read_text().split()) <= 1000


def test_every_document_can_be_reached_from_readme() -> None:
    seen, open_ones = set[Path](), [README]
    while open_ones:
        document = open_ones.pop()
        if document in seen:
            continue
        seen.add(document)
        targets = ((document.parent / link.partition("#")[0]).resolve() for link in links(document))
        open_ones += [file for file in targets if file.suffix == ".md" and file.exists()]
    assert {named(document) for document in DOCUMENTS} <= {named(document) for document in seen}


def test_every_decision_is_in_the_index_once() -> None:
    records = sorted(path.name for path in DECISIONS.glob("0*.md"))
    assert sorted(links(DECISIONS / "README.md")) == records
    assert [int(name[:4]) for name in records] == list(range(1, len(records) + 1))


def test_the_index_has_the_titles_of_the_records() -> None:
    index = (DECISIONS / "README.md").read_text()
    for record in DECISIONS.glob("0*.md"):
        title = record.read_text().partition("\n")[0].partition(". ")[2]
        assert f"[{title}]({record.name})" in index


def examples(document: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", document.read_text(), re.MULTILINE | re.DOTALL)


DEFINITIONS = [
    pytest.param(text, id=f"{named(document)}-{number}")
    for document in DOCUMENTS
    for number, text in enumerate(examples(document))
    if "from tidemark import" in text
]


def test_examples_of_definitions_are_found() -> None:
    assert len(DEFINITIONS) >= 6


@pytest.mark.parametrize("text", DEFINITIONS)
def test_every_example_of_a_definition_is_valid(text: str, tmp_path: Path) -> None:
    # In a file: a processor's source is read from it.
    (path := tmp_path / "example.py").write_text(text, encoding="utf-8")
    exec(compile(text, str(path), "exec"), {"__name__": "example"})


def test_the_example_that_reads_the_ledger_from_the_history_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = a_lake(tmp_path / "lake")
    write(lake, "gold.top_products", {"n": [1]}, stamp=a_stamp(0, ledger=a_batch(7, late=2, state_rows=3)))
    write(lake, "gold.top_products", {"n": [1]}, stamp=None)
    (text,) = examples(REPOSITORY / "docs/concepts/ledger.md")
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "<example>", "exec"), {})
    assert capsys.readouterr().out == "0 7 2 3\n"


def test_the_example_that_asks_which_rows_are_final_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = a_lake(tmp_path / "lake")
    write(lake, "gold.top_products_live", {"n": [1, 2], "final_after": [10, 30]})
    write(lake, "ops.watermarks", {"table": ["gold.top_products_live"], "watermark": [20]})
    text = next(text for text in examples(REPOSITORY / "docs/guides/querying.md") if "duckdb" in text)
    monkeypatch.chdir(tmp_path)
    shown: list[list[tuple[object, ...]]] = []
    exec(compile(text, "<example>", "exec"), {"print": lambda relation: shown.append(relation.fetchall())})
    assert sorted(shown[0]) == [(1, 10, True), (2, 30, False)]
