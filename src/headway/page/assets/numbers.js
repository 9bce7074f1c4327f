// Numbers with their units, as all views write them. Sentences about requests come from the server (words.js).

export function duration(ms) {
  return ms >= 100 ? `${(ms / 1000).toFixed(2)} s` : `${ms.toFixed(1)} ms`;
}

export function count(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

// An amount of a model's space.
export function amount(number, unit) {
  if (unit !== "bytes") return `${number}`;
  for (const [power, name] of [[30, "GiB"], [20, "MiB"], [10, "KiB"]]) {
    if (number >= 2 ** power) return `${(number / 2 ** power).toFixed(1)} ${name}`;
  }
  return `${number} B`;
}
