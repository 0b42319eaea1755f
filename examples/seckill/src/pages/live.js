// The live page: what the server decides, asked once a second. Texts of clients are shown as text only.

const at = (id) => document.getElementById(id);
const OUTCOMES = ["Ordered (201)", "Ordered before (409)", "Sold out (410)", "Too many requests (429)", "Banned (403)",
  "Not available (5xx)", "Other"];
const NAMES = { user: "Each user", ip: "Each address" };
const KEY = "admin-token";
const SILENCE = 5000;

class NoToken extends Error {}

/** Sends a request with the token, which is never part of a URL. Throws what the problem says. */
async function request(method, path, body) {
  const headers = { authorization: "Bearer " + sessionStorage.getItem(KEY) };
  const options = { method, headers, cache: "no-store", signal: AbortSignal.timeout(SILENCE) };
  const response = await fetch(path, { ...options, body: body && JSON.stringify(body) });
  if (response.status === 401) throw new NoToken("The token is not the one of this server.");
  if (response.status === 204) return null;
  const content = await response.json();
  if (!response.ok) throw new Error([content.title, content.detail].filter(Boolean).join(". "));
  return content;
}

/** Sets a text only if it is another one, so that a screen reader is not disturbed. */
function show(id, text, isBad = false) {
  if (at(id).textContent !== text) at(id).textContent = text;
  at(id).classList.toggle("bad", isBad);
}

/** Does something, and says what came of it. */
async function attempt(action) {
  try {
    show("done", await action());
  } catch (error) {
    show("done", error.message, true);
  }
}

function add(parent, name, properties) {
  const element = Object.assign(document.createElement(name), properties);
  parent.append(element);
  return element;
}

const number = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });

let earlier = null;

function showOrders(counts) {
  const now = performance.now();
  // A server that was started again counts from zero.
  const last = earlier && counts.every((count, outcome) => count >= earlier.counts[outcome]) ? earlier : { counts, now: now - 1 };
  OUTCOMES.forEach((name, outcome) => {
    const row = at("classes").rows[outcome] ?? at("classes").insertRow();
    if (row.cells.length === 0) [add(row, "th", { scope: "row", textContent: name }), row.insertCell(), row.insertCell()];
    row.cells[1].textContent = number((1000 * (counts[outcome] - last.counts[outcome])) / (now - last.now));
    row.cells[2].textContent = number(counts[outcome]);
  });
  earlier = { counts, now };
}

function showState({ store, opens_in_ms, stock }) {
  show("opening", opens_in_ms === null ? "open" : `opens in ${Math.ceil(opens_in_ms / 1000)} s`);
  const level = ({ sku, stock, sold }) => `${sku}: ${sold < stock ? `${stock - sold} of ${stock} left` : "sold out"}`;
  show("stock", stock.map(level).join("\n"));
  const isDown = store.error !== undefined;
  const reply = isDown ? `Redis does not reply: ${store.error}` : `Redis replies in ${number(store.round_trip_ms ?? 0)} ms`;
  show("store", store.kind === "redis" ? reply : "in this process", isDown);
  at("alert").textContent = isDown ? "Redis does not reply: the failure policy decides." : "";
}

const banPath = (user) => "/admin/bans/" + encodeURIComponent(user);
const actions = {
  explain,
  async ban(user) {
    const ban = await request("PUT", banPath(user), { for: at("length").value, reason: at("reason").value });
    return `${user} is banned for ${ban.remaining_seconds} s.`;
  },
  async lift(user) {
    await request("DELETE", banPath(user));
    return `The ban of ${user} is lifted.`;
  },
};

at("one-user").addEventListener("submit", (event) => {
  event.preventDefault();
  attempt(() => actions[event.submitter?.value ?? "explain"](at("user").value));
});

/** A user in the list is put into the form by a click. */
function showOffenders(offenders) {
  offenders.forEach(({ user, denials }, index) => {
    const row = at("offenders").rows[index] ?? at("offenders").insertRow();
    if (row.cells.length === 0) {
      const button = add(add(row, "th", { scope: "row" }), "button", { type: "button" });
      button.addEventListener("click", () => { at("user").value = button.value; at("user").focus(); });
      row.insertCell();
    }
    Object.assign(row.querySelector("button"), { value: user, textContent: user });
    row.cells[1].textContent = `${number(denials)} denials`;
  });
  while (at("offenders").rows.length > offenders.length) at("offenders").deleteRow(-1);
}

const seconds = (micros) => `${number(micros / 1e6)} s`;

/** Shows what the log of a user decides, and why. */
async function explain(user) {
  const { admitted, retry_after_us, ban, decided_by, store, quotas } =
    await request("GET", "/admin/explain/" + encodeURIComponent(user));
  at("explanation").replaceChildren();
  const say = (textContent) => add(at("explanation"), "p", { textContent });
  const isBanned = ban?.remaining_us > 0;
  const denied = isBanned ? `banned for ${seconds(ban.remaining_us)} more: ${ban.reason}` : `denied for ${seconds(retry_after_us)} more`;
  say(`The next request of ${user} is ${admitted ? "admitted" : denied}. Decided by ${decided_by} (${store}).`);
  for (const { quota, taken, free, admissions } of quotas) {
    say(`Quota ${quota}: ${taken} taken, ${free} free`);
    const frees = ({ age_us, leaves_in_us }) => `admitted ${seconds(age_us)} ago, comes free in ${seconds(leaves_in_us)}`;
    for (const admission of admissions) say(frees(admission));
  }
  return "";
}

const forms = new Map();

function showPolicies({ policies, stale }) {
  for (const { name, quotas } of policies) {
    const now = forms.get(name) ?? addForm(name, quotas);
    now.textContent = `In force: ${quotas}${stale ? " (Redis can't be read: maybe not on every server)" : ""}`;
  }
}

function addForm(name, quotas) {
  const form = add(at("policies"), "form", { id: `policy-${name}` });
  add(form, "h3", { textContent: NAMES[name] ?? name });
  forms.set(name, add(form, "p", { className: "now" }));
  const label = add(form, "label", { textContent: "New quotas, such as 2/1s,5/60s " });
  const field = add(label, "input", { id: `quotas-${name}`, value: quotas, required: true, autocomplete: "off" });
  add(form, "button", { textContent: "Enforce" });
  const reset = add(form, "button", { type: "button", className: "reset", textContent: "As configured" });
  const path = "/admin/policies/" + encodeURIComponent(name);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(async () => {
      await request("PUT", path, { quotas: field.value.trim() });
      return `${field.value.trim()} is enforced on every server.`;
    });
  });
  reset.addEventListener("click", () => attempt(async () => {
    await request("DELETE", path);
    return "The configured quotas are enforced again.";
  }));
  return forms.get(name);
}

function askForToken(why) {
  sessionStorage.removeItem(KEY);
  at("main").hidden = true;
  at("login").hidden = false;
  show("connection", why);
  at("token").focus();
}

async function run() {
  at("login").hidden = true;
  for (;;) {
    try {
      const sample = await request("GET", "/admin/live");
      showOrders(sample.counts);
      showState(sample);
      showOffenders(sample.offenders);
      showPolicies(sample.policies);
      at("main").hidden = false;
      show("connection", "Live");
    } catch (error) {
      if (error instanceof NoToken) return askForToken(error.message);
      show("connection", "No connection: trying again");
    }
    await new Promise((done) => setTimeout(done, 1000));
  }
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, at("token").value.trim());
  at("token").value = "";
  run();
});

if (sessionStorage.getItem(KEY)) run();
else askForToken("Not connected");
