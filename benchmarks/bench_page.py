"""How quick the page of a run is: 10,000 steps behind it, 100 replicas, ten more steps a second.

A real gateway and a real Chromium share the cores; the run behind it is scripted (`page_server`, of the tests).
Figures are of a page that nobody sees: drawing into its canvases is in them, showing these on a screen is not. Wanted:
the curves are there within 3 s, and 1.5 s the next time; the page keeps up with the screen (a frame each 17 ms) while
steps come, and nothing holds it up for 200 ms; a heap of 64 MiB at most.

    make bench-page
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from report import Report
from support.gateway.page_server import PageServer, row, standing
from support.gateway.page_viewer import Viewer, missing_programs, start_browser

STEPS, REPLICAS = 10_000, 100
LIVE_STEPS, LIVE_S = 100, 0.1

WATCH = """
window.frames = []; window.tasks = [];
const took = (list) => tasks.push(...list.getEntries().map((one) => one.duration));
new PerformanceObserver(took).observe({type: "longtask"});
let before = performance.now();
const frame = (now) => { frames.push(now - before); before = now; requestAnimationFrame(frame); };
requestAnimationFrame(frame);
"""


def main() -> int:
    """Measure and print. Returns the exit code."""
    if missing := missing_programs():
        print(
            f"bench_page: {missing} not installed; on Debian, apt-get install chromium chromium-driver", file=sys.stderr
        )
        return 3
    report = Report("page")
    with tempfile.TemporaryDirectory() as folder, PageServer(Path(folder)) as server:
        server.write([row(step) for step in range(1, STEPS + 1)])
        server.status(**standing(STEPS, REPLICAS))
        driver = start_browser(Path(folder) / "chromium")
        try:
            page = Viewer(driver, Path(folder))
            page.resize(1400, 1700)
            measure(server, page, report)
        finally:
            driver.quit()
    return report.finish()


def measure(server: PageServer, page: Viewer, report: Report) -> None:
    first = seconds(lambda: open_page(server, page))
    report.add(f"{STEPS} steps read for the first time: link to curves", first, "s", at_most=3)
    report.add("link to curves again", seconds(lambda: open_page(server, page)), "s", at_most=1.5)
    report.add("history", page.run(FETCH_MS, "/api/history?points=1000&figure=reward/mean&figure=time/wait"), "ms")
    report.add("history of all figures, 2000 points", page.run(FETCH_MS, "/api/history"), "ms")
    page.run(WATCH)
    for step in range(STEPS + 1, STEPS + LIVE_STEPS + 1):
        server.step(row(step))
        server.status(**standing(step, REPLICAS))
        time.sleep(LIVE_S)
    page.until_text("#progress", f"step {STEPS + LIVE_STEPS:,}")
    frames, tasks = page.run("return [frames.sort((a, b) => a - b), tasks]")
    report.add("frames: median", frames[len(frames) // 2], "ms", at_most=20)
    report.add("frames: 99 of 100 within", frames[int(0.99 * len(frames))], "ms", at_most=50)
    report.add("tasks over 50 ms", len(tasks), "")
    report.add("longest task", max(tasks, default=0), "ms", at_most=200)
    heap = page.run("return performance.memory.usedJSHeapSize / 2 ** 20")
    report.add("heap", heap, "MiB", at_most=64)


def open_page(server: PageServer, page: Viewer) -> None:
    page.open(server.link)
    page.until_text("#reward .readout", "reward 0")
    page.until(lambda: len(page.all("#replica-rows tr")) == REPLICAS, "replicas")
    page.frame()


def seconds(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


FETCH_MS = """
const headers = {authorization: `Bearer ${sessionStorage.getItem("streamrl-token")}`};
const begun = performance.now();
return fetch(arguments[0], {headers}).then((one) => one.json()).then(() => performance.now() - begun);
"""

if __name__ == "__main__":
    sys.exit(main())
