// The live page: what the server decides, asked once a second. Texts of clients are shown as text only.

const at = (id) => document.getElementById(id);
const OUTCOMES = { ordered: "Ordered (201)", "ordered-before": "Ordered before", "sold-out": "Sold out",
  denied: "Too many requests (429)", banned: "Banned (403)", unavailable: "Not available (5xx)", other: "Other", entered: "Entered (202)" };
const NAMES = { user: "Each user", ip: "Each address", accounts: "Accounts of an address" };
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

/** Returns the cells of a row of a table, the first of which is a heading. */
function cells(table, index, count) {
  const row = at(table).rows[index] ?? at(table).insertRow();
  if (row.cells.length === 0) add(row, "th", { scope: "row" });
  while (row.cells.length < count) row.insertCell();
  return row.cells;
}

/** Removes the rows after so many: the server may have been started again with fewer. */
function shorten(table, count) {
  while (at(table).rows.length > count) at(table).deleteRow(-1);
}

function showOrders(orders) {
  const now = performance.now();
  const counts = new Map(orders);
  // A server that was started again counts from zero.
  const goesOn = earlier && orders.every(([outcome, count]) => count >= earlier.counts.get(outcome));
  const last = goesOn ? earlier : { counts, now: now - 1 };
  orders.forEach(([outcome, count], row) => {
    const rate = (1000 * (count - last.counts.get(outcome))) / (now - last.now);
    const texts = [OUTCOMES[outcome] ?? outcome, number(rate), number(count)];
    [...cells("orders", row, 3)].forEach((cell, at) => { cell.textContent = texts[at]; });
  });
  earlier = { counts, now };
}

function showState({ opens_in_ms, stock, standstill }) {
  show("opening", opens_in_ms === null ? "open" : `opens in ${Math.ceil(opens_in_ms / 1000)} s`);
  stock.forEach(({ sku, level }, index) => {
    const { stock, sold, paid, entries, turns } = level ?? {};
    const left = sold < stock ? `${stock - sold} of ${stock}` : "sold out";
    const known = level ? [left, sold, paid, entries, turns] : ["not known"];
    [...cells("stock", index, 6)].forEach((cell, at) => { cell.textContent = at ? known[at - 1] ?? "" : sku; });
  });
  shorten("stock", stock.length);
  show("alert", standstill ? standstill.reason + "\n" + standstill.hint : "", true);
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

/** Only users can be banned. */
function choose(policy) {
  at("policy").value = policy;
  at("no-ban").hidden = policy === "user";
  for (const button of at("one-user").querySelectorAll("button:not([value=explain])")) button.disabled = policy !== "user";
}

at("policy").addEventListener("change", () => choose(at("policy").value));

/** A key in the list is put into the form by a click. */
function showOffenders(offenders) {
  offenders.forEach(({ policy, key, denials }, index) => {
    const [heading, name, count] = cells("offenders", index, 3);
    const button = heading.firstChild ?? add(heading, "button", { type: "button" });
    button.onclick = () => { at("user").value = key; choose(policy); at("user").focus(); };
    [button.textContent, name.textContent, count.textContent] = [key, NAMES[policy] ?? policy, `${number(denials)} denials`];
  });
  shorten("offenders", offenders.length);
}

const seconds = (micros) => `${number(micros / 1e6)} s`;

/** Shows what the log of a user decides, and why. */
async function explain(user) {
  const { admitted, retry_after_us, ban, decided_by, quotas } =
    await request("GET", `/admin/explain/${encodeURIComponent(user)}?policy=${at("policy").value}`);
  at("explanation").replaceChildren();
  const say = (textContent) => add(at("explanation"), "p", { textContent });
  const isBanned = ban?.remaining_us > 0;
  const denied = isBanned ? `banned for ${seconds(ban.remaining_us)} more: ${ban.reason}` : `denied for ${seconds(retry_after_us)} more`;
  say(`The next request of ${user} is ${admitted ? "admitted" : denied}. Decided by ${decided_by}.`);
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
    now.textContent = `In force: ${quotas}${stale ? " (what is in Redis can't be read: maybe not on every server)" : ""}`;
  }
  for (const [name, now] of forms) {
    if (policies.some((policy) => policy.name === name)) continue;
    now.parentElement.remove();
    forms.delete(name);
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

/** When the server last answered. */
let seen = null;

async function run() {
  at("login").hidden = true;
  for (;;) {
    try {
      const sample = await request("GET", "/admin/live");
      showOrders(sample.orders);
      showState(sample);
      showOffenders(sample.offenders);
      showPolicies(sample.policies);
      at("main").hidden = false;
      at("main").className = "";
      seen = Date.now();
      show("connection", "Live");
    } catch (error) {
      if (error instanceof NoToken) return askForToken(error.message);
      at("main").className = "stale";
      const age = seen ? ` What is shown is ${Math.round((Date.now() - seen) / 1000)} s old.` : "";
      show("connection", "This server does not answer: trying again." + age, true);
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
