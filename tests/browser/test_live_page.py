"""The live page of a server, in a real browser."""

import json
import time
from collections.abc import Iterator

import pytest
from selenium.webdriver.common.by import By

from fedfm.config.deployment import Deployment
from fedfm.deploy.events import (
    AnswerLeftOut,
    Joined,
    NodeRefused,
    RoundBegan,
    RoundEnded,
    Scored,
    Started,
    Stopped,
    emit,
    listen,
)
from fedfm.deploy.operations.service import Operations
from fedfm.deploy.operations.web import serve_web
from fedfm.deploy.programs.addresses import Address, free_address

PATIENCE = 15.0
EVIL = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"


def tell_round(round: int, clients: list[int]) -> None:
    """One round: its model, and the score of it."""
    emit(RoundBegan(round, [0, 1, 2]))
    left_out = [client for client in (0, 1, 2) if client not in clients]
    ended = RoundEnded(
        round, f"{round:064x}", clients, left_out, 2.5 + round % 3, 40_000, 60_000 + round, 2
    )
    emit(ended)
    accuracy = 0.9 - 0.6 / round
    scores = {"test_accuracy": accuracy, "val_accuracy": accuracy - 0.02, "train_loss": 2 / round}
    scores |= {"test_macro_f1": accuracy - 0.1}
    emit(Scored(round, scores))


@pytest.fixture
def operations(tmp_path) -> Iterator[Operations]:
    """A server with three clients, one of them with a name that wants to be HTML."""
    operations = Operations(tmp_path, Deployment(timeout=600))
    with listen(operations):
        emit(Started("c" * 64, "fedfm", 20, 3, True, "1.0", 2))
        for client, name in enumerate(["hospital-a", EVIL, "hospital-c"]):
            emit(Joined(client, name, 100 + client))
        emit(NodeRefused(104, f"its class {EVIL} is not one of the federation's"))
        for round in range(1, 8):
            tell_round(round, [0, 1, 2])
        emit(AnswerLeftOut(f"no answer within 600 s {EVIL}", node=102, late=True))
        tell_round(8, [0, 1])
        yield operations


@pytest.fixture
def address(operations) -> Iterator[Address]:
    address = free_address()
    with serve_web(operations, address):
        yield address


@pytest.fixture
def page(chromium, address):
    """The page, freshly loaded."""
    for kind in ("browser", "performance"):
        chromium.get_log(kind)
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    chromium.set_window_size(1400, 1000)
    chromium.get(f"http://{address}/")
    wait_for(chromium, "8/20")
    return chromium


def text(page, selector: str) -> str:
    return page.find_element(By.CSS_SELECTOR, selector).text


def wait_for(page, title: str, selector: str = "title") -> None:
    """Wait until an element's text contains this."""
    script = "return document.querySelector(arguments[0]).textContent"
    end = time.monotonic() + PATIENCE
    while title not in (shown := page.execute_script(script, selector)):
        assert time.monotonic() < end, f"{selector} is {shown!r}"
        time.sleep(0.05)


def emulate(page, width: int, scheme: str = "light") -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def test_it_shows_the_federation(page):
    assert text(page, "h1") == "fedfm"
    tiles = text(page, "#tiles")
    assert "8" in tiles
    assert "of 20" in tiles
    assert "82.50%" in tiles
    assert "1 late" in tiles
    rows = page.find_elements(By.CSS_SELECTOR, "#clients tbody tr")
    assert [row.find_element(By.TAG_NAME, "th").text for row in rows] == [
        "hospital-a",
        EVIL,
        "hospital-c",
    ]
    assert "late" in rows[2].text
    titles = [each.text for each in page.find_elements(By.CSS_SELECTOR, "#charts h3")]
    assert titles == [
        *("Accuracy", "Training loss", "Traffic of a round", "Time of a round", "macro_f1"),
    ]
    assert "8 entries" not in text(page, "#record")
    assert f"{8:064x}" in text(page, "#record")


def test_it_updates_by_itself(page):
    tell_round(9, [0, 1, 2])
    wait_for(page, "9/20")
    assert "1 late" not in text(page, "#tiles")
    emit(Stopped("only one client is left"))
    wait_for(page, "only one client is left", "#warnings")


def test_texts_of_clients_are_never_html(page):
    assert "hacked" not in page.title
    assert page.find_elements(By.CSS_SELECTOR, "img, main script") == []
    assert EVIL in text(page, "#clients")
    assert EVIL in text(page, "#refusals")


def test_nothing_comes_from_elsewhere_and_nothing_is_complained_of(page, address):
    wait_for(page, "Live", "#live")
    assert [entry for entry in page.get_log("browser") if entry["level"] == "SEVERE"] == []
    sent = (json.loads(entry["message"])["message"] for entry in page.get_log("performance"))
    urls = [
        message["params"]["request"]["url"]
        for message in sent
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert urls
    assert all(url.startswith((f"http://{address}/", "data:")) for url in urls)


@pytest.mark.parametrize("width", [390, 768, 1400])
def test_nothing_is_cut_off(page, width):
    emulate(page, width)
    wide = page.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_follows_the_reader_s_colours_and_its_button(page, scheme):
    emulate(page, 1400, scheme)
    script = "return getComputedStyle(document.body).backgroundColor"

    def is_dark() -> bool:
        red = int(page.execute_script(script).split("(")[1].split(",")[0])
        return red < 128

    assert is_dark() == (scheme == "dark")
    page.find_element(By.ID, "theme").click()
    assert is_dark() != (scheme == "dark")


def test_a_server_that_has_ended_is_told(chromium, operations):
    address = free_address()
    with serve_web(operations, address):
        chromium.get(f"http://{address}/")
        wait_for(chromium, "Live", "#live")
    wait_for(chromium, "No answer from the server", "#live")
