// Colours: one per request, and one per kind of time, from page.css, so that both themes have their own.

// Most of them from Paul Tol's schemes for colour-blind eyes; those who arrive one after the other differ most.
const REQUESTS = [
  "#4477aa", "#ee8866", "#44bb99", "#aa3377", "#ccbb44", "#66ccee",
  "#ee6677", "#228833", "#8877cc", "#aa7744", "#99bb55", "#dd99bb",
];
const KINDS = [
  "ink", "soft", "faint", "line", "panel", "prefill", "decode", "recompute", "rejected", "evaluate", "space", "turn",
  "input", "other", "accent",
];
const MODELS = ["#4477aa", "#aa3377", "#ccbb44", "#228833", "#66ccee", "#ee6677"];
const WHOLE = ["encode", "update", "decode_pixels"];

export function requestColour(hue) {
  return REQUESTS[hue % REQUESTS.length];
}

export function modelColour(place) {
  return MODELS[place % MODELS.length];
}

// The theme's colours as canvases need them. Asking the style each time would be slow: `refresh` is for a new theme.
export class Theme {
  constructor() {
    this.refresh();
  }

  refresh() {
    const style = getComputedStyle(document.documentElement);
    for (const kind of KINDS) this[kind] = style.getPropertyValue(`--${kind}`).trim();
  }

  // The colour of an interval: what was done, or what was awaited.
  interval({ name, on }) {
    return this[on ?? (WHOLE.includes(name) ? "evaluate" : name)] ?? this.other;
  }
}

// "auto" follows the system; a choice is kept for the next visit.
export function chosenTheme() {
  return read("headway-theme") ?? "auto";
}

export function chooseTheme(name) {
  const dark = name === "dark" || (name === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  write("headway-theme", name);
}

// Storage may be forbidden (a file opened from disk, a strict browser): then nothing is kept.
function read(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // the choice holds for this visit
  }
}
