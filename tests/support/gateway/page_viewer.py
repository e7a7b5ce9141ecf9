"""Somebody who looks at the page: what is seen, clicked, typed, and what the browser complains of."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

LIMIT_S = 30.0
BROWSER, PROGRAM = "chromium", "chromedriver"
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing_programs() -> str:
    """What there has to be and is not; empty when all is there."""
    return " and ".join(name for name in (BROWSER, PROGRAM) if shutil.which(name) is None)


def start_browser(profile: Path) -> webdriver.Chrome:
    """A browser that nobody sees. profile: an empty folder for what it keeps. `quit` ends it."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which(BROWSER))
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which(PROGRAM)))


class Viewer:
    """pictures: the folder that screenshots go to."""

    def __init__(self, driver: webdriver.Chrome, pictures: Path) -> None:
        self.driver = driver
        self._pictures = pictures

    def open(self, link: str) -> None:
        # A link that differs in its fragment alone loads nothing.
        self.driver.get("about:blank")
        self.driver.get(link)

    def leave(self) -> None:
        """Forget all that the page has kept."""
        self.driver.execute_cdp_cmd("Network.enable", {})
        if self.driver.current_url.startswith("http"):
            self.driver.execute_script("sessionStorage.clear()")
        self.driver.get("about:blank")
        self.complaints()

    def theme(self, name: str) -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def picture(self, name: str) -> None:
        self.frame()
        self.driver.save_screenshot(str(self._pictures / f"{name}.png"))

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def run(self, script: str, *args: Any) -> Any:
        return self.driver.execute_script(script, *args)

    def until(self, seen: Callable[[], Any], what: str) -> Any:
        """Wait until something is seen, and give it."""
        return WebDriverWait(self.driver, LIMIT_S, poll_frequency=0.05).until(lambda _: seen(), what)

    def until_text(self, selector: str, part: str) -> str:
        try:
            self.until(lambda: part in self.text(selector), "")
        except TimeoutException as error:
            raise AssertionError(f"{selector} says {self.text(selector)!r}, and not {part!r}") from error
        return self.text(selector)

    def shown(self, selector: str) -> bool:
        return self.find(selector).is_displayed()

    def complaints(self) -> list[str]:
        """Errors that the browser logged since it was asked last: of scripts, and of what the policy forbids."""
        return [one["message"] for one in self.driver.get_log("browser") if one["level"] == "SEVERE"]
