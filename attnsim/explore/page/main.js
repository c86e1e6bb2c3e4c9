// Puts the page together: a control changes the state, the newest state is asked for, its answer is shown.

import { Latest, ask, connect, grid, isStatic } from "./api.js";
import { Controls } from "./controls.js";
import { setLook } from "./drawing.js";
import { make } from "./format.js";
import { address, changed, readQuery, readView } from "./state.js";
import { Views } from "./views.js";

const PAUSE = 250; // ms without a change before what takes longer than the sentence is asked for
const OF_ONE_PICTURE = ["vary", "space", "limit", "minimise", "case"]; // keys that no other answer depends on
const at = (id) => document.getElementById(id);

let state = readQuery(); // with the version and calibration of its address: the answer says whether they differ
let view = readView();
let stamp = {};
let catalogue = null;
let offered = "";
let used = null; // the control that was used last
let waiting = 0;
let pictures = new AbortController();
let last = []; // the newest sentence's answer, and the state it is of
let lever = {}; // what helps most, and the state it is of

const controls = new Controls(at("controls"), turn);
const views = new Views({ tabs: at("tabs"), views: at("views") }, { turn, look });
const headline = new Latest("headline", answered, failed);

// What an answer depends on, as text: a picture that has it already is not asked for again.
const about = (state, name) => JSON.stringify(Object.entries(state).filter(([key]) => !OF_ONE_PICTURE.includes(key) || (key === "vary" && name === "curve")).toSorted());

function turn(changes, node = null) {
  used = node;
  const before = state;
  for (const [key, value] of Object.entries(changes)) state = changed(state, key, key in controls.figures && value === "1x" ? "" : value);
  for (const key of ["v", "cal"]) state = changed(state, key, ""); // from here on it is this version's
  controls.show(state);
  views.show(view, state);
  views.following.filter((name) => about(before, name) !== about(state, name)).forEach((name) => views.cards[name].stale());
  if (about(before) !== about(state)) {
    at("sentence").classList.add("stale");
    headline.ask(quick(state));
  }
  pictures.abort();
  clearTimeout(waiting);
  waiting = setTimeout(paused, PAUSE);
}

function look(changes) {
  for (const [key, value] of Object.entries(changes)) view = changed(view, key, value);
  views.show(view, state);
  views.redraw();
  history.replaceState(null, "", address(state, view, stamp));
  clearTimeout(waiting);
  waiting = setTimeout(paused, 0);
}

// What is asked at once: a search of tiles waits for a pause.
function quick({ tiles, ...rest }) {
  return rest;
}

function answered(answer, asked) {
  last = [answer, asked];
  const next = lever.of === about(asked) && lever.says;
  at("sentence").replaceChildren(...[answer.sentence, next].filter(Boolean).map((text) => make("span", {}, `${text} `)));
  at("sentence").classList.toggle("stale", about(asked) !== about(state));
  at("remark").textContent = [answer.trust[0], ...answer.notes, answer.stale].filter(Boolean).join(" · ");
  at("error").textContent = "";
  controls.clear();
  if (about(asked) === about(state)) controls.answered(answer, asked); // an older answer moves no slider back
}

// The last good answer stays, greyed; the one line stands under it and beside the control that was used.
function failed(reason) {
  at("sentence").classList.add("stale");
  controls.wrong(reason.message, used);
  at("error").textContent = reason.message;
  pictures.abort();
  clearTimeout(waiting);
}

// When nothing else waits to be painted; a browser that paints nothing may call itself busy.
const idle = () => new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done, { timeout: 100 }));

// After a pause: the address, what the controls offer for another GPU or question, and the pictures one by one.
async function paused() {
  const asked = state;
  history.replaceState(null, "", address(asked, view, stamp));
  pictures.abort();
  const { signal } = (pictures = new AbortController());
  const question = JSON.stringify(Object.entries(asked).filter(([key]) => !(key in controls.figures)));
  try {
    if (question !== offered) offer(await ask("catalogue", { state: asked }, signal), asked);
    offered = question;
    if (asked.tiles && last[1] !== asked) answered(await ask("headline", { state: asked }, signal), asked);
  } catch (reason) {
    if (!signal.aborted) failed(reason);
    return;
  }
  for (const name of views.following) {
    const card = views.cards[name];
    if (card.answer && card.about === about(asked, name)) {
      show(card, card.answer, asked);
      continue;
    }
    if (name === "split" && Object.keys(controls.figures).filter((key) => key in asked).length < 2) {
      card.empty("Turn two figures or more: what each of them brings is then told apart.");
      continue;
    }
    try {
      const answer = await ask("picture", { name, state: asked }, signal);
      await idle();
      if (signal.aborted) return;
      card.about = about(asked, name);
      show(card, answer, asked);
    } catch (reason) {
      if (signal.aborted || reason.overtaken) return;
      card.fail(reason);
    }
  }
}

function show(card, answer, asked) {
  card.show(answer, asked);
  if (!answer.next_lever) return;
  lever = { of: about(asked), says: answer.next_lever };
  answered(...last);
}

function offer(found, asked) {
  catalogue = found;
  stamp = { v: catalogue.version, cal: catalogue.calibration };
  setLook(catalogue);
  controls.offer(catalogue, catalogue.defaults, grid());
  views.offer(catalogue);
  controls.show(asked);
  views.show(view, asked);
}

// Hovering lights what belongs to the same unit in every picture; a field that has the focus fades nothing.
function light(link) {
  document.body.classList.toggle("lit", Boolean(link));
  document.querySelectorAll("[data-link]").forEach((node) => node.classList.toggle("lit", Boolean(link) && node.dataset.link === link));
}

function listen() {
  let lit = "";
  const follow = (node) => {
    const link = node.closest?.("[data-link]")?.dataset.link ?? "";
    if (link !== lit) light((lit = link));
  };
  document.addEventListener("pointerover", (event) => follow(event.target));
  const redraw = () => (catalogue && setLook(catalogue), catalogue && controls.offer(catalogue, catalogue.defaults, grid()), views.redraw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = 0;
  new ResizeObserver(([entry]) => entry.contentRect.width !== width && ((width = entry.contentRect.width), views.redraw())).observe(at("views"));
}

try {
  await connect();
  const asked = state;
  history.replaceState(null, "", address(asked, view, stamp));
  offer(await ask("catalogue", { state: asked }).catch(() => ask("catalogue", { state: {} })), asked);
  if (isStatic()) Object.values(views.cards).forEach((card) => card.still?.());
  listen();
  await headline.ask(quick(asked));
  await paused();
} catch (reason) {
  at("sentence").textContent = "";
  at("error").textContent = reason.message;
}
