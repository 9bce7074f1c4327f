// What the latents of running images look like by now: small pictures, asked for while someone looks at the queue.

const EVERY_MS = 250;
const AT_A_TIME = 4;
const PLACES = 24;

export class Previews {
  constructor(server) {
    this._server = server;
    this._places = new Map(); // id to { canvas, seen, asking, askedAt }
    this._asking = 0;
  }

  // Shows the latent of a running image on `canvas`; the last one stays when it is over.
  show(canvas, record) {
    if (record.pattern !== "image" || !this._server) return;
    const place = this._places.get(record.id) ?? this._new(record.id, canvas);
    const [{ done }] = record.parts.length ? record.parts : [{ done: 0 }];
    const idle = place && !place.asking && this._asking < AT_A_TIME;
    const due = done > 0 && place?.seen !== done && performance.now() - place?.askedAt > EVERY_MS;
    if (idle && due && record.stage === "running") this._ask(record.id, place, done);
  }

  keep(ids) {
    for (const id of this._places.keys()) if (!ids.has(id)) this._places.delete(id);
  }

  _new(id, canvas) {
    if (this._places.size >= PLACES) return null;
    const place = { canvas, seen: 0, asking: false, askedAt: -EVERY_MS };
    this._places.set(id, place);
    return place;
  }

  async _ask(id, place, done) {
    Object.assign(place, { asking: true, askedAt: performance.now(), seen: done });
    this._asking += 1;
    try {
      const response = await this._server.open(`/v1/requests/${encodeURIComponent(id)}/preview`);
      if (response.ok) await paint(place.canvas, await response.blob(), response.headers.get("headway-update"));
    } catch (error) {
      console.info(`no preview of ${id}: ${error.message}`);
    } finally {
      place.asking = false;
      this._asking -= 1;
    }
  }
}

async function paint(canvas, blob, update) {
  const picture = await createImageBitmap(blob);
  Object.assign(canvas, { width: picture.width, height: picture.height, hidden: false });
  canvas.getContext("2d").drawImage(picture, 0, 0);
  const [done, of] = (update ?? "?/?").split("/");
  canvas.title = `the latent after update ${done} of ${of}, by a linear approximation of the decoder`;
  canvas.setAttribute("aria-label", canvas.title);
}
