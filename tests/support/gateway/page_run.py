"""A run on its page: what a test has it do before it looks."""

from pathlib import Path
from typing import Any

from support.gateway.page_server import PageServer, row, standing
from support.gateway.page_viewer import Viewer

from streamrl.observability.metrics import MetricsWriter
from streamrl.services.run.folder import RunFolder

CONTRASTS = """
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const channel = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const colour = parse(getComputedStyle(element).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const weak = [];
let looked = 0;
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !element.checkVisibility() || element.disabled) continue;
  looked += 1;
  const [one, two] = [light(parse(getComputedStyle(element).color)), light(ground(element))].sort((a, b) => b - a);
  const contrast = (one + 0.05) / (two + 0.05);
  const name = `${element.tagName}.${element.className} ${element.textContent.slice(0, 20)}`;
  if (contrast < 4.5) weak.push(`${name}: ${contrast}`);
}
return looked < 50 ? [`only ${looked} texts were looked at`] : weak;
"""
"""Gives the texts that have too little contrast with their ground."""
COLOURS = """
const canvas = document.querySelector(arguments[0]);
const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
return new Set(pixels).size;
"""
"""Gives how many colours a canvas has."""


def running(server: PageServer, *, steps: int = 120, replicas: int = 3, **figures: Any) -> None:
    """A run that has done so many steps. figures: of each line of its metrics, beside the usual ones."""
    server.write([{**row(step), **figures} for step in range(1, steps + 1)])
    server.status(**standing(steps, replicas))
    server.tell("phase", name="running")


def opened(page: Viewer, server: PageServer) -> None:
    page.open(server.link)
    page.until_text("#reward .readout", "reward 0")
    page.until_text("#progress", "step ")


def choose_overlay(page: Viewer, name: str) -> None:
    choice = page.find(f"input[name=colour][value={name}]")
    page.run("arguments[0].scrollIntoView({block: 'center'})", choice)  # the page's head may lie on it
    choice.click()


def other_run(path: Path, *, steps: int = 90, seed: int = 1, **figures: Any) -> None:
    """A run beside the one of the page."""
    path.mkdir()
    RunFolder.create(path, path.name)
    with MetricsWriter(path / "metrics.jsonl") as metrics:
        for step in range(1, steps + 1):
            metrics.write({**row(step, seed), **figures})
