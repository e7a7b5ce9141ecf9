// A canvas that is sharp, follows its size and the colours of the page, and draws at most once a frame.

export class Canvas {
  #draw;
  #asked = false;

  /** draw(context, width, height, colour): width and height in pixels of CSS; colour("line-1") is that of the style sheet. */
  constructor(element, draw) {
    this.element = element;
    this.#draw = draw;
    new ResizeObserver(() => this.request()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.request());
  }

  /** Draw with the next frame. A page that nobody sees has none. */
  request() {
    if (this.#asked) return;
    this.#asked = true;
    requestAnimationFrame(() => {
      this.#asked = false;
      this.#now();
    });
  }

  #now() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const scale = devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (!wide || !high) return;
    if (this.element.width !== wide || this.element.height !== high) {
      Object.assign(this.element, { width: wide, height: high });
    }
    const context = this.element.getContext("2d");
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(this.element);
    context.font = `12px ${style.fontFamily}`;
    this.#draw(context, width, height, (name) => style.getPropertyValue(`--${name}`).trim());
  }
}
