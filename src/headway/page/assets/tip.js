// One tooltip for all canvases: lines of text beside the pointer, within the window.

export class Tip {
  constructor(element) {
    this._element = element;
  }

  show(x, y, lines) {
    const tip = this._element;
    tip.replaceChildren(...lines.map((text, place) => Object.assign(document.createElement(place ? "span" : "b"), {
      textContent: text,
    })));
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
    tip.style.top = `${y + height + 22 > innerHeight ? Math.max(4, y - height - 12) : y + 16}px`;
  }

  hide() {
    this._element.hidden = true;
  }
}

// Fits a canvas to its box in device pixels. Returns its context, cleared, and its size in CSS pixels.
export function prepare(canvas, height) {
  const ratio = devicePixelRatio || 1;
  const width = canvas.parentElement.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
