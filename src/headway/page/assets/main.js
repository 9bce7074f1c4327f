// The live page: events go onto the tape; each frame draws the story at the moment that is shown, in four views that
// share one chosen request.
import { BlocksView } from "page/blocks.js";
import { Theme, chooseTheme, chosenTheme, modelColour } from "page/colours.js";
import { Server, follow } from "page/feed.js";
import { Header } from "page/header.js";
import { listen } from "page/keys.js";
import { Moment } from "page/moment.js";
import { Previews } from "page/previews.js";
import { Prompts } from "page/prompts.js";
import { QueueView, queued } from "page/queue.js";
import { RibbonView, setText, update } from "page/ribbon.js";
import { seeds } from "page/seed.js";
import { StepsView } from "page/steps.js";
import { Tape } from "page/tape.js";
import { Tip } from "page/tip.js";
import { requestView } from "page/view.js";
import { RecordedWords, Words } from "page/words.js";

const WORDS_EVERY_MS = 120;
const STEPS_SHOWN = 1500;

const $ = (id) => document.getElementById(id);
const recorded = $("recorded") ? JSON.parse($("recorded").textContent) : null;

chooseTheme(chosenTheme());
const theme = new Theme();
const tip = new Tip($("tip"));
const tape = new Tape({
  delivers: !recorded || recorded.events.some((event) => event.event === "received"),
  kept: recorded ? Infinity : 20000,
});
const moment = new Moment(tape, { recorded: recorded !== null });
const server = new Server(askForKey);
const shown = { chosen: null, byHand: false, pointed: null, dirty: true, wordsAt: 0 };
const header = new Header($, { moment, server, title: recorded?.title ?? null, changed: () => change(() => {}) });
const words = recorded
  ? new RecordedWords(recorded.words, () => moment.number)
  : new Words({ server, told: () => Object.assign(shown, { words: true, wordsAt: 0 }) });
const blocks = new BlocksView({ canvas: $("map"), told: $("blocks-told"), tip, theme, choose });
const steps = new StepsView({ canvas: $("lane"), told: $("steps-told"), tip, theme, goTo: hold });
const ribbon = new RibbonView({
  canvas: $("life"), told: $("ribbon-told"), intervals: $("intervals"), why: $("why"), words, tip, theme,
});
const queue = new QueueView({
  list: $("rows"), told: $("queue-told"), none: $("none"), ruled: !recorded, words, choose, cancel,
  previews: new Previews(recorded ? null : server),
  point: (id) => change(() => { shown.pointed = id; }),
});

// -- what can be done ----------------------------------------------------------------------------------------------

function change(what) {
  what();
  shown.dirty = true;
  shown.wordsAt = 0;
}

function choose(id) {
  change(() => { Object.assign(shown, { chosen: id, byHand: true }); });
}

function chooseNext(by) {
  const { rows } = queued(moment.story);
  if (!rows.length) return;
  const place = rows.findIndex((record) => record.id === shown.chosen);
  const next = place === -1 ? 0 : Math.max(0, Math.min(rows.length - 1, place + by));
  choose(rows[next].id);
  $("rows").children[next]?.scrollIntoView({ block: "nearest" });
}

function hold(number) {
  change(() => moment.hold(number));
}

async function cancel(id) {
  if (!id || moment.held !== null) return;
  try {
    await server.json(`/v1/requests/${encodeURIComponent(id)}`, { method: "DELETE" });
  } catch (error) {
    header.say(error.message);
  }
}

function setTheme(name) {
  chooseTheme(name);
  change(() => theme.refresh());
}

function turnTheme() {
  const names = ["auto", "light", "dark"];
  setTheme(names[(names.indexOf(chosenTheme()) + 1) % names.length]);
}

function askForKey(wrong) {
  $("key-wrong").hidden = !wrong;
  $("key").value = "";
  $("key-dialog").showModal();
  return new Promise((resolve) => {
    $("key-dialog").onclose = () => ($("key").value ? resolve($("key").value) : $("key-dialog").showModal());
  });
}

// -- what is drawn -------------------------------------------------------------------------------------------------

// Until someone chooses, the page looks at whoever waits for space, else at whoever runs. A choice is kept while the
// page shows a time at which that request was not there.
function choice(story) {
  const kept = story.record(shown.chosen);
  if (shown.byHand && kept) return kept;
  const live = [...story.live.values()];
  const waits = live.find((record) => record.verdict?.on === "space");
  const found = waits ?? kept ?? live[0] ?? [...story.ended.values()].at(-1) ?? null;
  if (!shown.byHand) shown.chosen = found?.id ?? null;
  return found;
}

function draw(time) {
  const story = moment.story;
  const now = moment.now();
  const chosen = choice(story);
  const focus = (shown.pointed && story.record(shown.pointed)) || chosen;
  const recent = tape.stepsUntil(moment.number, STEPS_SHOWN);
  const models = [...story.models.keys()];
  if (shown.dirty) blocks.draw(story, focus, recent);
  steps.draw(recent, now, moment.number, chosen, models);
  const view = chosen ? requestView(story, chosen, now) : null;
  ribbon.draw(view, chosen?.hold);
  if (time - shown.wordsAt > WORDS_EVERY_MS) {
    shown.wordsAt = time;
    queue.draw(story, now, chosen?.id, moment.held !== null);
    ribbon.tell(view);
    header.draw(story, now);
    legend(story);
    shown.words = false;
  } else {
    shown.words = true;
  }
  shown.dirty = false;
}

// Colours that this story has need of: of what is evaluated whole, and of several models.
function legend(story) {
  const models = [...story.models.values()];
  $("whole").hidden = models.every((model) => model.mapped);
  const names = models.length > 1 ? models.map(({ name }) => name) : [];
  update($("models"), names, (element, name) => {
    setText(element, `steps of ${name}`);
    element.style.setProperty("--kind", modelColour(names.indexOf(name)));
  });
}

// What draws nothing new costs nothing: a frame is drawn for events, for choices, and while someone's time grows.
function frame(time) {
  const moved = moment.pass((time - (shown.time ?? time)) * 1e6);
  shown.time = time;
  if (moved) shown.dirty = true;
  const growing = moment.held === null && moment.story.live.size > 0;
  if (shown.dirty || growing || (shown.words && time - shown.wordsAt > WORDS_EVERY_MS)) draw(time);
  words.ask(time);
  requestAnimationFrame(frame);
}

// -- where events come from ----------------------------------------------------------------------------------------

function told(event) {
  tape.push(event);
  shown.words = true;
  if (moment.held === null) shown.dirty = true;
}

// The story begins anew where events are missing in its middle; what was there before is asked for.
function missed(between) {
  if (between) {
    tape.clear();
    moment.anew();
  }
  return seeds(server, tape, told);
}

function start() {
  listen({
    next: () => chooseNext(1), previous: () => chooseNext(-1), cancel: () => cancel(shown.chosen),
    toggle: () => change(() => moment.toggle()), step: (by) => change(() => moment.step(by)),
    live: () => change(() => moment.release()), theme: turnTheme, help: () => $("help-dialog").showModal(),
  });
  $("theme").onclick = turnTheme;
  $("help").onclick = () => $("help-dialog").showModal();
  $("pause").onclick = () => change(() => moment.toggle());
  $("live").onclick = () => change(() => moment.release());
  $("scrub").oninput = () => hold(Number($("scrub").value));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(chosenTheme()));
  new ResizeObserver(() => change(() => {})).observe(document.querySelector("main"));
  requestAnimationFrame(frame);
}

if (recorded) {
  document.documentElement.classList.add("recorded");
  for (const event of recorded.events) tape.push(event);
  moment.release();
  header.connection("recorded");
} else {
  new Prompts({ form: $("ask"), server, asked: () => header.asked, choose });
  header.ask();
  follow(server, { told, missed, state: (name) => header.connection(name), clock: (ns) => moment.set(ns) });
}
start();
