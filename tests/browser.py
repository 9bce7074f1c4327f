"""A browser for tests of the live page: Debian's chromium, driven by playwright."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

#: Where it is set a missing browser is a failure, elsewhere a reason to skip.
REQUIRED = "HEADWAY_BROWSER_TESTS"


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, ended with the block. Skips the test where there is none, unless it is required."""
    path = shutil.which("chromium")
    if path is None:
        reason = f"chromium is not installed (apt-get install chromium); with {REQUIRED}=1 that is a failure"
        assert not os.environ.get(REQUIRED), reason
        pytest.skip(reason)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def opened(browser: Browser, url: str, *, width: int = 1440, height: int = 900, quiet: bool = True) -> Iterator[Page]:
    """A page on which nothing may go wrong: neither an exception nor, if it is to be `quiet`, an error on the
    console. It may ask its own server and nobody else."""
    complaints: list[str] = []
    asked: list[str] = []
    context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" and quiet else None)
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    try:
        yield page
    finally:
        context.close()
    own = url[: url.index("/", 8)] if url.startswith("http") else url
    assert complaints == []
    assert [other for other in asked if not other.startswith((own, "data:"))] == []
