// What an operator does on the live page: explains, bans, lifts bans, changes thresholds.

import { attempt } from "./attempt.js";
import { explain } from "./explain.js";
import { PolicyForms } from "./policies.js";
import { request } from "./stream.js";

const at = (id) => document.getElementById(id);
const banPath = (user) => "/admin/bans/" + encodeURIComponent(user);

export class Operator {
  rows = new Map();
  policies = new PolicyForms();
  banned = null;

  constructor() {
    at("one-user").addEventListener("submit", (event) => {
      event.preventDefault();
      const action = event.submitter?.value ?? "explain";
      this[action](at("user").value);
    });
    at("ban").addEventListener("close", () => {
      if (at("ban").returnValue === "ban") this.impose(this.banned);
    });
  }

  show(sample) {
    this.policies.show(sample.policies);
    this.showOffenders(sample.offenders ?? []);
  }

  explain(user) {
    attempt(() => explain(user));
  }

  ban(user) {
    this.banned = user;
    at("ban-title").textContent = `Ban ${user}`;
    at("ban").returnValue = "";
    at("ban").showModal();
  }

  impose(user) {
    const body = { for: at("ban-length").value, reason: at("ban-reason").value };
    attempt(async () => {
      const ban = await request("PUT", banPath(user), body);
      return `${user} is banned until ${ban.until}.`;
    });
  }

  lift(user) {
    attempt(async () => {
      await request("DELETE", banPath(user));
      return `The ban of ${user} is lifted.`;
    });
  }

  /** Rows stay the same elements, so that the focus stays on a button. */
  showOffenders(offenders) {
    at("offenders-none").hidden = offenders.length > 0;
    at("offenders-table").hidden = offenders.length === 0;
    const users = new Set(offenders.map(({ user }) => user));
    for (const [user, row] of this.rows) {
      if (users.has(user) || row.element.contains(document.activeElement)) continue;
      row.element.remove();
      this.rows.delete(user);
    }
    for (const offender of offenders) this.showOffender(offender);
    const table = at("offenders");
    if (table.contains(document.activeElement)) return;
    const wanted = offenders.map(({ user }) => this.rows.get(user).element);
    if (wanted.some((row, index) => table.rows[index] !== row)) table.append(...wanted);
  }

  showOffender({ user, denials, banned_seconds }) {
    const row = this.rows.get(user) ?? this.addRow(user);
    const isBanned = banned_seconds !== null && banned_seconds !== undefined;
    row.count.textContent = denials.toLocaleString("en");
    row.state.textContent = isBanned ? " (banned)" : "";
    row.ban.textContent = isBanned ? "Lift the ban" : "Ban …";
    row.isBanned = isBanned;
  }

  addRow(user) {
    const element = at("offenders").insertRow();
    const head = document.createElement("th");
    head.scope = "row";
    const state = document.createElement("b");
    head.append(user, state);
    element.append(head);
    const row = { element, state, count: element.insertCell(), isBanned: false };
    const actions = element.insertCell();
    const button = (text, act) => {
      const it = document.createElement("button");
      it.type = "button";
      it.textContent = text;
      it.addEventListener("click", act);
      actions.append(it);
      return it;
    };
    button("Explain", () => this.explain(user)).className = "explain";
    row.ban = button("Ban …", () => (row.isBanned ? this.lift(user) : this.ban(user)));
    row.ban.className = "ban";
    this.rows.set(user, row);
    return row;
  }
}
