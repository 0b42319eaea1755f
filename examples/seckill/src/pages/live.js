// The live page: what the server decides, as it decides. Texts of clients are shown as text only.

import { Chart } from "./chart.js";
import { Operator } from "./operate.js";
import { NoToken, follow, token } from "./stream.js";

const at = (id) => document.getElementById(id);
const OUTCOMES = [
  "Ordered (201)", "Ordered before (409)", "Sold out (410)", "Too many requests (429)", "Banned (403)",
  "Not available (5xx)", "Other",
];

const chart = new Chart(at("chart"), OUTCOMES.length);
const operator = new Operator();
const rows = OUTCOMES.map((name, outcome) => {
  const row = at("classes").insertRow();
  const head = document.createElement("th");
  head.scope = "row";
  const mark = document.createElement("span");
  mark.className = "mark";
  mark.style.background = `var(--c${outcome})`;
  head.append(mark, name);
  row.append(head);
  return { rate: row.insertCell(), total: row.insertCell() };
});

/** Sets a text only if it is another one, so that a screen reader is not disturbed. */
function show(id, text) {
  if (at(id).textContent !== text) at(id).textContent = text;
}

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const ms = (value) => `${number(value)} ms`;

function showRequests(sample) {
  const { rates, peak } = chart.add({ at_ms: sample.at_ms, counts: sample.counts });
  show("peak", `at most ${number(peak)} per second`);
  rows.forEach(({ rate, total }, outcome) => {
    rate.textContent = number(rates[outcome]);
    total.textContent = number(sample.counts[outcome]);
  });
}

let earlier = { store: 0, local: 0, policy: 0 };

function showState({ store, decided_by, latency, opens_in_ms }) {
  show("opening", opens_in_ms === null ? "open" : `opens in ${Math.ceil(opens_in_ms / 1000)} s`);
  const names = { memory: "in this process", unread: "…" };
  const isDown = store.error !== undefined;
  show("store", names[store.kind] ?? (isDown
    ? `Redis does not reply: ${store.error}`
    : `Redis replies in ${ms(store.round_trip_ms)}`));
  show("breaker", store.breaker ?? "none");
  show("alert", isDown ? "Redis does not reply: the failure policy decides." : "");
  at("store").classList.toggle("bad", isDown);
  at("breaker").classList.toggle("bad", store.breaker === "open");
  const isHere = decided_by.local > earlier.local || decided_by.policy > earlier.policy;
  const by = store.kind === "redis" ? "Redis" : "this server";
  show("decided", isHere ? "this server alone" : by);
  at("decided").classList.toggle("bad", isHere);
  earlier = decided_by;
  show("latency", latency === null
    ? "no order"
    : `p50 ${ms(latency.p50)}, p90 ${ms(latency.p90)}, p99 ${ms(latency.p99)}, max ${ms(latency.max)}`);
}

function showStock(stock) {
  const list = at("stock");
  while (list.children.length > stock.length) list.lastChild.remove();
  stock.forEach(({ sku, stock: pieces, sold }, index) => {
    let item = list.children[index];
    if (!item) {
      item = document.createElement("li");
      item.append(document.createElement("b"), document.createElement("span"), document.createElement("meter"));
      list.append(item);
    }
    const [name, text, meter] = item.children;
    const left = Math.max(0, pieces - sold);
    name.textContent = sku;
    text.textContent = left > 0 ? `${number(left)} of ${number(pieces)} left` : "sold out";
    meter.max = pieces;
    meter.value = left;
    meter.ariaLabel = `${sku} left`;
  });
}

function onEvent(name, data) {
  if (name === "history") return chart.restart(data);
  if (name !== "sample") return;
  at("main").hidden = false;
  showRequests(data);
  showState(data);
  showStock(data.stock);
  operator.show(data);
}

async function run() {
  at("login").hidden = true;
  at("logout").hidden = false;
  try {
    await follow({ onEvent, onState: (text) => show("connection", text) });
  } catch (error) {
    if (!(error instanceof NoToken)) throw error;
    askForToken(error.message);
  }
}

function askForToken(why) {
  token.forget();
  at("main").hidden = true;
  at("logout").hidden = true;
  at("login").hidden = false;
  show("connection", why);
  at("token").value = "";
  at("token").focus();
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set(at("token").value.trim());
  at("token").value = "";
  run();
});
at("logout").addEventListener("click", () => {
  token.forget();
  location.reload();
});

if (token.get()) run();
else askForToken("Not connected");
