"""The report and the live page of a server in a real browser: `make test-browser`.

Needs chromium, chromedriver (Debian: chromium-driver) and the extra [browser]. Without
FEDFM_BROWSER=1 nothing here is collected; with it a missing browser is an error.
"""

import os
import shutil
from pathlib import Path

import pytest

if os.environ.get("FEDFM_BROWSER") != "1":
    collect_ignore_glob = ["test_*.py"]
else:
    from selenium import webdriver

QUICK = ["rounds=6", "epochs=1", "batch_size=32", "model.name=mlp", "model.hidden=[16]"]


@pytest.fixture(scope="session")
def report(tmp_path_factory) -> Path:
    """A report about two methods, two real runs of each."""
    from fedfm.cli.run import run_and_show
    from fedfm.config import load_config
    from fedfm.report.html import write_report

    folder = tmp_path_factory.mktemp("report")
    for method in ("fedavg", "fedfm-lite"):
        for seed in (0, 1):
            config = load_config("digits", [f"method={method}", f"seed={seed}", *QUICK])
            run_and_show([config], [folder / "runs" / f"{method}-{seed}"], resume=False)
    (folder / "runs" / "fedavg-0" / "profile.json").write_text('{"training": 3, "other": 1}')
    return write_report([folder / "runs"], folder / "report.html").path


@pytest.fixture(scope="session")
def chromium():
    """A browser without a window that keeps its console and its network traffic."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert browser, "there is no chromium; on Debian: apt-get install chromium chromium-driver"
    assert driver, "there is no chromedriver; on Debian: apt-get install chromium-driver"
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("headless=new", "no-sandbox", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture
def page(chromium, report):
    """The report, freshly loaded, in a window of a desktop's width."""
    for kind in ("browser", "performance"):
        chromium.get_log(kind)
    chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    chromium.set_window_size(1280, 900)
    chromium.get(report.as_uri())
    return chromium
