// The line at the top: which model, how full the pool, how many seats, how fast; and where in time the page stands.
import { drawAlarm } from "page/alarm.js";
import { setText } from "page/ribbon.js";
import { amount, duration } from "page/numbers.js";

const RATE_OVER_NS = 2e9;
const STATES = {
  connecting: "connecting", live: "live", lost: "connection lost, trying again", recorded: "recorded",
};

export class Header {
  // `changed` is told when there is something new to draw that no event brought.
  constructor($, { moment, server, title, changed }) {
    Object.assign(this, { _$: $, _moment: moment, _server: server, _changed: changed });
    this._title = title;
    this.models = [];
    this._state = "connecting";
    this._said = "";
    if (!title) return;
    document.title = `${title} · Headway`;
    $("model").previousElementSibling.textContent = "run";
  }

  // What events may tell no more: the models' names, and what they have to give.
  async ask() {
    try {
      this.models = (await this._server.json("/v1/models")).data;
      this._changed();
    } catch (error) {
      this.say(error.message);
    }
  }

  connection(name) {
    if (this._state === "lost" && name === "live") this.ask();
    this._state = name;
    document.documentElement.dataset.connection = name;
    this._tell();
  }

  // Something went wrong that no view shows.
  say(text) {
    this._said = text;
    this._tell();
    setTimeout(() => {
      this._said = "";
      this._tell();
    }, 8000);
  }

  draw(story, now) {
    const $ = this._$;
    const models = [...story.models.values()];
    setText($("model"), this._title ?? (this.models.map(({ id }) => id).join(", ") || "…"));
    setText($("levels"), levels(models));
    $("levels").parentElement.hidden = models.length > 0 && !$("levels").textContent;
    setText($("seats"), models.map((model) => this._seats(model, models.length > 1)).join(" · ") || "0");
    setText($("rate"), this._rate(now).toFixed(1));
    this._tiers(models);
    this._time(story, now);
    drawAlarm($("alarm"), story);
    if (story.unknown.size) this._said ||= `this page does not know events named ${[...story.unknown].join(", ")}`;
    this._tell();
  }

  // The model that prompts are sent to: one that continues them, else one that draws them.
  get asked() {
    const of = (pattern) => this.models.find(({ headway }) => (headway?.pattern ?? "text") === pattern);
    const model = of("text") ?? of("image") ?? this.models[0];
    return { model: model?.id, draws: model?.headway?.pattern === "image" };
  }

  _seats({ name, facts, levels: { seats_used: used } }, several) {
    const seats = facts?.seats ?? this.models.find(({ id }) => id === name)?.headway?.seats;
    return `${several ? `${name} ` : ""}${seats === undefined ? used : `${used} of ${seats}`}`;
  }

  _tell() {
    const held = this._state === "live" && this._moment.held !== null;
    setText(this._$("state"), this._said || (held ? "held, still collecting" : STATES[this._state]));
  }

  // Tokens of the last two seconds.
  _rate(now) {
    const from = now - RATE_OVER_NS;
    let sum = 0;
    for (const step of this._moment.tape.stepsUntil(this._moment.number, 400).reverse()) {
      if (step.at < from) break;
      const committed = step.committed !== null && step.committed <= this._moment.number;
      if (committed && step.committedAt > from) sum += step.emitted;
    }
    return sum / (RATE_OVER_NS / 1e9);
  }

  _time(story, now) {
    const $ = this._$;
    const { tape, number, held, recorded, playing } = this._moment;
    const slider = $("scrub");
    slider.min = tape.first;
    slider.max = Math.max(tape.last, 1);
    slider.value = number;
    const going = recorded ? playing : held === null;
    setText($("pause"), going ? "Pause" : recorded ? "Play" : "Continue");
    $("pause").setAttribute("aria-pressed", String(!going));
    setText($("live"), recorded ? "End" : "Live");
    $("live").disabled = recorded ? number >= tape.last : held === null;
    const first = tape.event(tape.first)?.at ?? now;
    const where = recorded
      ? `${duration((now - first) / 1e6)} in`
      : held === null ? "now" : `${duration((tape.story.at - now) / 1e6)} before the latest event`;
    setText($("moment"), `step ${story.step}, ${where}`);
    slider.setAttribute("aria-valuetext", $("moment").textContent);
  }

  // What lies outside the pools; before any event of it, as each model was loaded.
  _tiers(models) {
    const list = this._$("tiers");
    const told = models.flatMap(({ name, tiers }) => {
      const known = tiers.length ? tiers : this.models.find(({ id }) => id === name)?.headway?.tiers ?? [];
      return known.map((tier) => `${models.length > 1 ? `${name} ` : ""}${tierWords(tier)}`);
    });
    list.hidden = !told.length;
    while (list.children.length > told.length) list.lastChild.remove();
    told.forEach((words, place) => {
      setText(list.children[place] ?? list.appendChild(document.createElement("li")), words);
    });
  }
}

function tierWords({ name, blocks, total, bytes }) {
  return `${name} tier: ${blocks} of ${total} blocks, ${amount(blocks * bytes, "bytes")}`;
}

// What is live in each pool; a model without one is left out.
function levels(models) {
  if (models.length < 2 && (models[0]?.mapped ?? true)) {
    const { live, reusable, free } = models[0]?.levels ?? { live: 0, reusable: 0, free: 0 };
    return `${live} live · ${reusable} reusable · ${free} free`;
  }
  const pools = models.map(({ name, pattern, levels: { live, reusable, free } }) => {
    const unit = pattern === "image" ? "bytes" : "blocks";
    return { name, live: amount(live, unit), total: live + reusable + free && amount(live + reusable + free, unit) };
  });
  const shown = pools.filter(({ total }) => total);
  return shown.map(({ name, live, total }) => `${name} ${live} of ${total}`).join(" · ");
}
