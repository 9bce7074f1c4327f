// Two prompts, A and B, sent together: their answers stream in beside each other.
import { frames } from "page/feed.js";
import { setText } from "page/ribbon.js";

const EXAMPLES = {
  A: "Write a long story about a lighthouse keeper.",
  B: "Explain why the sky is blue, step by step.",
};

export class Prompts {
  // `choose(id)` hears of a request that was pointed at, by the name beside its prompt.
  constructor({ form, server, asked, choose }) {
    Object.assign(this, { _server: server, _asked: asked });
    this._visit = Math.random().toString(36).slice(2, 5);
    this._count = 0;
    this._boxes = ["A", "B"].map((name) => this._box(name, choose));
    const both = button("submit", "Send both");
    both.className = "both";
    form.append(...this._boxes.map((box) => box.element), both);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this._boxes.forEach((box) => this._send(box));
    });
    form.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    });
  }

  _box(name, choose) {
    const element = document.createElement("fieldset");
    const legend = Object.assign(document.createElement("legend"), { textContent: name });
    const text = Object.assign(document.createElement("textarea"), { rows: 4, value: EXAMPLES[name] });
    text.setAttribute("aria-label", `prompt ${name}`);
    const tokens = Object.assign(document.createElement("input"), { type: "number", min: 1, value: 200 });
    tokens.setAttribute("aria-label", `most tokens of answer ${name}`);
    const label = Object.assign(document.createElement("label"), { textContent: "tokens " });
    label.append(tokens);
    const whole = Object.assign(document.createElement("input"), { type: "checkbox" });
    const all = Object.assign(document.createElement("label"), { title: "the model may not end its answer earlier" });
    all.append(whole, " all of them");
    const id = Object.assign(button("button", ""), { className: "sent", hidden: true, title: "choose it" });
    id.addEventListener("click", () => choose(id.textContent));
    legend.append(id);
    const one = button("button", `Send ${name}`);
    const row = Object.assign(document.createElement("div"), { className: "row" });
    row.append(label, all, one);
    const answer = Object.assign(document.createElement("div"), { className: "answer scrolls" });
    answer.setAttribute("aria-label", `answer ${name}`);
    answer.tabIndex = 0;
    element.append(legend, text, row, answer);
    const box = { name, element, text, tokens, whole, id, answer, turn: 0 };
    one.addEventListener("click", () => this._send(box));
    return box;
  }

  // What came before stays alive, but only the latest answer is shown.
  async _send(box) {
    this._count += 1;
    const turn = (box.turn += 1);
    const id = `${box.name}-${this._visit}${this._count}`;
    Object.assign(box.id, { textContent: id, hidden: false });
    box.answer.className = "answer scrolls";
    setText(box.answer, "");
    const shown = (what) => {
      if (turn !== box.turn) return;
      if (typeof what === "string") box.answer.append(what);
      else box.answer.replaceChildren(what); // a picture, better than the one before
    };
    try {
      const response = await this._post(box, id);
      for await (const text of answers(response)) shown(text);
    } catch (error) {
      if (turn === box.turn) box.answer.classList.add("failed");
      shown(`${box.answer.textContent ? "\n" : ""}${error.message}`);
    }
  }

  _post(box, id) {
    const { model, draws } = this._asked();
    const text = box.text.value;
    const [path, asked] = draws
      ? ["/v1/images/generations", { prompt: text, partial_images: 3 }]
      : ["/v1/chat/completions", {
        max_tokens: Number(box.tokens.value), ignore_eos: box.whole.checked,
        messages: [{ role: "user", content: text }],
      }];
    const headers = { "content-type": "application/json", "x-request-id": id };
    const body = JSON.stringify({ model, stream: true, ...asked });
    return this._server.open(path, { method: "POST", headers, body });
  }
}

// The pieces of a streamed answer, texts or pictures. Throws Error with the server's words for a refusal, also in the
// middle.
async function* answers(response) {
  if (!response.ok) throw new Error((await response.json()).error.message);
  for await (const { data } of frames(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    const text = chunk.choices?.[0]?.delta?.content;
    if (text) yield text;
    if (chunk.b64_json) yield picture(chunk);
  }
}

function picture({ b64_json: data, partial_image_index: place }) {
  const image = Object.assign(document.createElement("img"), { className: "picture" });
  image.alt = place === undefined ? "the image" : `preview ${place + 1}`;
  image.src = `data:image/png;base64,${data}`;
  return image;
}

function button(type, text) {
  return Object.assign(document.createElement("button"), { type, textContent: text });
}
