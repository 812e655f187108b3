import base64
import io
import json
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from fedfm.report.html import write_report
from tests.report.runs import write_run

PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}


def one(page, selector):
    return page.find_element(By.CSS_SELECTOR, selector)


def every(page, selector):
    return page.find_elements(By.CSS_SELECTOR, selector)


def emulate(page, media="", **features):
    chosen = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": chosen})


def background(page) -> float:
    """How light the page is, 0 to 255."""
    colour = page.execute_script("return getComputedStyle(document.body).backgroundColor")
    return float(np.mean([int(part) for part in colour.strip("rgba()").split(",")[:3]]))


def pixels(page) -> np.ndarray:
    image = Image.open(io.BytesIO(page.get_screenshot_as_png()))
    return np.asarray(image.convert("L"), float)


def methods(page) -> list[str]:
    return [head.text for head in every(page, "table.sortable:first-of-type tbody th span")][:2]


def test_it_loads_without_complaint_and_without_the_network(page):
    assert page.title == "Federated learning on digits"
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    sent = [m["params"]["request"]["url"] for m in messages if m["method"].endswith("WillBeSent")]
    assert [url for url in sent if not url.startswith("data:")] == [page.current_url]


def test_a_table_sorts_by_click_and_by_enter(page):
    head = one(page, "table.sortable th:nth-child(3)")
    button = head.find_element(By.TAG_NAME, "button")
    accuracies = "return [...document.querySelectorAll('table.sortable tbody')[0].rows]" + (
        ".map(row => Number(row.cells[2].dataset.value))"
    )
    button.click()
    assert head.get_attribute("aria-sort") == "descending"
    found = page.execute_script(accuracies)
    assert found == sorted(found, reverse=True)
    button.send_keys(Keys.ENTER)
    assert head.get_attribute("aria-sort") == "ascending"
    assert page.execute_script(accuracies) == sorted(found)


def test_the_filter_hides_a_method_everywhere(page):
    lines = every(page, ".variant:not([hidden]) .series")
    assert all(line.is_displayed() for line in lines)
    one(page, "#filter input").click()
    shown = {
        part.get_attribute("data-method") for part in every(page, "[data-method]:not([hidden])")
    }
    assert shown == {"1"}
    assert methods(page)[0] == ""
    assert [line.is_displayed() for line in lines] == [False, True, False, True]
    one(page, "#filter input").click()
    assert all(line.is_displayed() for line in lines)


def test_the_pointer_shows_the_values_of_all_methods(page):
    chart = one(page, "#s0-rounds svg.chart")
    tip = one(page, "#s0-rounds .tip")
    assert not tip.is_displayed()
    ActionChains(page).move_to_element(chart).perform()
    numbers = json.loads(one(page, "#s0-rounds script").get_attribute("textContent"))
    assert tip.is_displayed()
    assert tip.text.startswith("round 3")
    for line in numbers["lines"]:
        assert line["label"] in tip.text
        assert f"{line['y'][2]:.2f} %" in tip.text


def test_arrows_move_the_crosshair_and_escape_hides_it(page):
    chart, tip = one(page, "#s0-rounds svg.chart"), one(page, "#s0-rounds .tip")
    page.execute_script("arguments[0].focus()", chart)
    ActionChains(page).send_keys(Keys.END).perform()
    assert tip.text.startswith("round 6")
    ActionChains(page).send_keys(Keys.ARROW_LEFT).perform()
    assert tip.text.startswith("round 5")
    ActionChains(page).send_keys(Keys.ESCAPE).perform()
    assert not tip.is_displayed()


def test_bytes_can_be_seen_on_a_logarithmic_scale(page):
    linear, log = every(page, "#s0-bytes .variant")
    button = one(page, "#s0-bytes .logarithmic")
    assert (linear.is_displayed(), log.is_displayed()) == (True, False)
    button.click()
    assert (linear.is_displayed(), log.is_displayed()) == (False, True)
    assert button.get_attribute("aria-pressed") == "true"
    ActionChains(page).move_to_element(log.find_element(By.TAG_NAME, "svg")).perform()
    assert "sent" in one(page, "#s0-bytes .tip").text


def test_dark_and_light_by_the_system_and_by_the_button(page):
    emulate(page, prefers_color_scheme="light")
    assert background(page) > 200
    emulate(page, prefers_color_scheme="dark")
    assert background(page) < 60
    button = one(page, "#theme")
    WebDriverWait(page, 10).until(lambda _: button.text == "Light")  # told with the next frame
    button.click()
    assert background(page) > 200
    assert button.get_attribute("aria-pressed") == "false"


def test_a_config_is_copied(page):
    page.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    one(page, "details.config summary").click()
    one(page, "details.config .copy").click()
    copied = page.execute_async_script(
        "const done = arguments[0];setTimeout(() => navigator.clipboard.readText().then(done), 100)"
    )
    assert copied == one(page, "details.config pre").get_attribute("textContent")
    assert copied.startswith("seed = 0")
    assert one(page, "details.config .copy").text == "Copied"


def test_every_control_is_reached_by_tab_in_order_and_shows_its_focus(page):
    place = """
      const at = document.activeElement, box = at.getBoundingClientRect();
      return [at.id || at.className.baseVal || (at.className + at.tagName),
              box.top + scrollY, getComputedStyle(at).outlineStyle]"""
    page.execute_script("document.activeElement.blur()")
    found = []
    for _ in range(60):
        ActionChains(page).send_keys(Keys.TAB).perform()
        if page.execute_script("return document.activeElement === document.body"):
            break
        found.append(page.execute_script(place))
    names = [name for name, _, _ in found]
    assert names[:4] == ["skipA", "theme", "scriptINPUT", "scriptINPUT"]
    assert names.count("chart") == 2
    assert names.count("BUTTON") == 23
    assert names.count("SUMMARY") == 2
    assert all(outline != "none" for _, _, outline in found)
    tops = [top for _, top, _ in found[4:]]
    assert all(after > before - 80 for before, after in pairwise(tops))


def test_every_chart_has_its_legend(page):
    for chart in every(page, ".variant:not([hidden]) svg.chart"):
        legend = chart.find_elements(By.CSS_SELECTOR, ".legend text")
        assert [entry.text for entry in legend] == ["fedavg", "fedfm-lite"]
        assert all(entry.is_displayed() for entry in legend)
    one(page, "#filter input").click()
    shown = every(page, "#s0-rounds .legend:not([hidden]) text")
    assert [entry.text for entry in shown] == ["fedfm-lite"]


def test_every_chart_is_saved_as_it_is_shown(page, tmp_path):
    page.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )
    emulate(page, prefers_color_scheme="dark")
    one(page, "#filter input").click()
    one(page, "#s0-bytes .logarithmic").click()
    buttons = [button for button in every(page, ".save") if button.is_displayed()]
    for button in buttons:
        button.click()
    names = {"s0-rounds.svg", "s0-bytes.svg", "s0-dots.svg", "s0-samples.svg"}
    assert len(buttons) == len(names)
    WebDriverWait(page, 20).until(lambda _: {path.name for path in tmp_path.iterdir()} == names)
    for path in tmp_path.iterdir():
        chart = ElementTree.parse(path).getroot()
        drawn = [part for part in chart.iter() if part.tag.endswith(("path", "text"))]
        assert len(drawn) > 10
        assert all("rgb" in f"{part.get('fill')}{part.get('stroke')}" for part in drawn)
        assert chart[0].tag.endswith("rect"), "a dark chart has dark paper"
        assert max(map(int, str(chart[0].get("fill")).strip("rgb()").split(","))) < 60
        page.get(path.as_uri())
        assert pixels(page).std() > 5
    saved = ElementTree.parse(tmp_path / "s0-bytes.svg").iter("{http://www.w3.org/2000/svg}text")
    texts = [text.text for text in saved]
    assert "fedfm-lite" in texts
    assert "fedavg" not in texts, "the filter hides it"


def test_on_a_phone_nothing_is_cut_off(page):
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    assert page.execute_script("return innerWidth") == 390
    assert page.execute_script("return document.documentElement.scrollWidth") <= 390
    for cell in every(page, ".scroll tbody td"):
        assert cell.get_attribute("data-head"), "its column's name stands above it"
        assert cell.rect["x"] >= 0
        assert cell.rect["x"] + cell.rect["width"] <= 390
        assert page.execute_script(
            "return arguments[0].scrollWidth <= arguments[0].clientWidth", cell
        )
    size = page.execute_script(
        "const text = document.querySelector('svg.chart text');"
        "return parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a"
    )
    assert size > 10


def test_a_table_sorts_on_a_phone(page):
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    head = one(page, "table.sortable th:nth-child(3)")
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", head)
    head.find_element(By.TAG_NAME, "button").click()
    assert head.get_attribute("aria-sort") == "descending"


def test_it_prints_light_and_without_controls(page):
    one(page, "#theme").click()
    emulate(page, "print")
    assert background(page) == 255
    assert not any(control.is_displayed() for control in every(page, "button.script, input"))
    assert all(chart.is_displayed() for chart in every(page, ".variant:not([hidden]) svg"))
    emulate(page)
    printed = base64.b64decode(page.print_page())
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000


def test_without_scripts_tables_and_charts_are_there(page):
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.refresh()
        assert not one(page, "#theme").is_displayed()
        assert len(every(page, "table.sortable tbody tr")) == 4 + 2  # runs, and their clients
        assert one(page, "#s0-bytes svg.chart").is_displayed()
        assert not every(page, "#s0-bytes .variant")[1].is_displayed()
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_hostile_name_is_a_text_everywhere(page, tmp_path):
    evil = "<script>document.title='mine'</script><img src=x onerror=document.title='mine'>"
    folder = write_run(tmp_path / "runs" / "evil")
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(summary | {"method": evil}))
    page.get(write_report([folder], tmp_path / "evil.html", evil).path.as_uri())
    ActionChains(page).move_to_element(one(page, "#s0-rounds svg.chart")).perform()
    assert evil in one(page, "#s0-rounds .tip").text
    assert page.title == evil
    assert every(page, "img") == []
    assert page.get_log("browser") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_screenshot_shows_something(page, scheme):
    emulate(page, prefers_color_scheme=scheme)
    page.execute_script("document.querySelector('#s0').scrollIntoView()")
    shot = pixels(page)
    assert shot.std() > 10
    assert len(np.unique(shot)) > 50
