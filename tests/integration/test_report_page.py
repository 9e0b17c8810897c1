"""report.html in a real browser: it opens without an error and shows the figures of metrics.json."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

selenium = pytest.importorskip("selenium", reason="Selenium is installed with requirements/dev.txt only")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from selenium import webdriver

    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not program or not driver:
        pytest.skip("chromium and chromedriver are not installed on this machine")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    flags = ("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync")
    quiet = ("disable-background-networking", "disable-component-update", "disable-dev-shm-usage")
    for flag in (*flags, *quiet, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield made
    made.quit()


def test_page_opens_clean_and_shows_the_figures(browser, finished: Path) -> None:
    browser.get((finished / "report.html").as_uri())
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    metrics = json.loads((finished / "metrics.json").read_text())
    tiles = browser.execute_script("return [...document.querySelectorAll('.tile')].map(t => t.innerText)")
    shown = {tile.split("\n")[1]: tile.split("\n")[0] for tile in tiles}
    assert shown["test AUC"] == f"{metrics['test']['auc']:.4f}"
    assert shown["test loss"] == f"{metrics['test']['loss']:.4f}"
    assert shown["steps"] == f"{metrics['steps']:,}"
    rows = browser.execute_script(
        "return [...document.querySelectorAll('table')[0].rows].map(r => [...r.cells].map(c => c.innerText))"
    )
    header, *body = rows
    auc = dict(zip(header, next(row for row in body if row[0] == "AUC"), strict=True))
    for split in ("train", "validation", "test"):
        assert auc[split] == f"{metrics[split]['auc']:.4f}"


def test_every_chart_has_a_size_and_nothing_spills_over(browser, finished: Path) -> None:
    for width in (1280, 400):  # a desk and a phone
        browser.set_window_size(width, 900)
        browser.get((finished / "report.html").as_uri())
        sizes = browser.execute_script(
            "return [...document.querySelectorAll('svg')].map(s => {const b = s.getBoundingClientRect();"
            " return [b.width, b.height]})"
        )
        assert len(sizes) >= 8
        assert all(w > 100 and h > 40 for w, h in sizes), sizes
        spill = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert spill <= 0, f"the page is {spill} pixels wider than a window of {width}"
