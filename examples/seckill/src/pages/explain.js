// The explanation of a user's log, in a dialog.

import { request } from "./stream.js";

const at = (id) => document.getElementById(id);

function add(parent, name, text) {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function time(micros) {
  const seconds = micros / 1e6;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60
    ? `${minutes} min ${Math.floor(seconds % 60)} s`
    : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const BY = {
  store: "the store", local_log: "this server alone, by its own log", failure_policy: "the failure policy",
};

function sentence({ admitted, retry_after_us, ban }) {
  if (admitted) return "The next request is admitted.";
  if (ban?.remaining_us > 0) {
    return `Banned for ${time(ban.remaining_us)} more${ban.reason ? `: ${ban.reason}` : ""}.`;
  }
  return `The next request is denied for ${time(retry_after_us)} more.`;
}

function showQuota(body, { quota, taken, free, admissions, waits_for, not_listed }, kind) {
  add(body, "h3", `${kind} ${quota}: ${taken} taken, ${free} free`);
  if (admissions.length === 0) return;
  const frame = add(body, "div");
  frame.className = "scroll";
  // A scrolled table is reached by the keyboard.
  frame.tabIndex = 0;
  const table = add(frame, "table");
  const head = add(add(table, "thead"), "tr");
  for (const name of ["Admitted", "Places", "Comes free"]) add(head, "th", name).scope = "col";
  const rows = add(table, "tbody");
  for (const { id, cost, age_us, leaves_in_us } of admissions) {
    const row = add(rows, "tr");
    add(row, "th", `${time(age_us)} ago`).scope = "row";
    add(row, "td", String(cost));
    add(row, "td", `in ${time(leaves_in_us)}${id === waits_for ? ", and then a request fits" : ""}`);
  }
  if (not_listed > 0) add(body, "p", `${not_listed} more are not listed.`);
}

function showBan(body, { strikes_us, limit, level, next_ban_us }) {
  if (!limit) return;
  const next = next_ban_us === null ? "" : ` The next ban lasts ${time(next_ban_us)}.`;
  add(body, "p", `${strikes_us.length} strikes of ${limit}, level ${level}.${next}`);
}

/** Shows what the log of a user decides, and why. */
export async function explain(user) {
  const explanation = await request("GET", "/admin/explain/" + encodeURIComponent(user));
  const { quotas, candidates, ban, decided_by, store } = explanation;
  at("explanation-title").textContent = `The requests of ${user}`;
  const body = at("explanation-body");
  body.replaceChildren();
  add(body, "p", sentence(explanation)).id = "explanation-sentence";
  add(body, "p", `Decided by ${BY[decided_by] ?? decided_by} (${store}).`);
  for (const quota of quotas) showQuota(body, quota, "Quota");
  for (const quota of candidates) showQuota(body, quota, "Candidate, which denies nothing,");
  if (ban) showBan(body, ban);
  at("explanation").showModal();
  return "";
}
