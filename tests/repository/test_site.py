"""The pages as a site: it builds without a broken link, can be searched, and asks nothing of anybody else."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("zensical", reason="the site needs zensical, which older Pythons lack")

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(
    r"""<(?:script|link|img|iframe|source|object|embed)\b[^>]*?\b(?:src|href|data)=["']?(?:https?:)?//[^"' >]+|"""
    r"""(?:@import|url\()\s*["']?(?:https?:)?//[^"')]+"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    settings = (ROOT / "mkdocs.yml").read_text().replace("build/", "")
    (folder / "mkdocs.yml").write_text(settings)
    for command in (
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--site", str(folder / "pages")],
        [sys.executable, "-m", "zensical", "build", "--strict"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_it_asks_nothing_of_anybody_else(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    found = {page.name: OUTSIDE.findall(page.read_text(encoding="utf-8")) for page in [*pages, *site.rglob("*.css")]}
    assert {name: asked for name, asked in found.items() if asked} == {}
    # The script fetches a library for diagrams where a page has one, and a repository's figures where one is named.
    assert [page.name for page in pages if 'class="mermaid"' in page.read_text(encoding="utf-8")] == []
    assert "repo_url" not in (ROOT / "mkdocs.yml").read_text()


def test_a_word_is_found_on_the_page_that_tells_of_it(site):
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    found = {item["location"].partition("#")[0] for item in items if "GpusondeSpoolFilling" in json.dumps(item)}
    assert "docs/operations.html" in found


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("agent", "bound of the spool; beyond it"),
        ("collector", "[server]"),
        ("http", "GET /v1/jobs/{job_id}"),
    ],
)
def test_the_reference_that_only_the_code_holds_is_there(site, page, words):
    text = re.sub(r"<[^>]+>", "", (site / "reference" / f"{page}.html").read_text(encoding="utf-8"))
    assert words in text


def test_what_stands_in_lists_stays_there_and_lines_stay_lines(site):
    text = (site / "docs" / "operations.html").read_text(encoding="utf-8")
    numbered = text[text.index('id="several-hosts"') : text.index('id="slurm"')]
    assert numbered.count("<ol>") == 1
    assert numbered.count("<li>") == 5
    assert "```" not in numbered
    keys = (site / "docs" / "cli.html").read_text(encoding="utf-8")
    assert re.search(r"</code>: [a-z ]+<br ?/?>\n<code>", keys)
