// The forms of the thresholds: a candidate first, which is counted and not enforced.

import { attempt } from "./attempt.js";
import { request } from "./stream.js";

const at = (id) => document.getElementById(id);
const NAMES = { user: "Each user", ip: "Each address" };

function add(parent, name, properties) {
  const element = Object.assign(document.createElement(name), properties);
  parent.append(element);
  return element;
}

export class PolicyForms {
  forms = new Map();

  show({ policies, stale }) {
    for (const policy of policies) {
      const form = this.forms.get(policy.name) ?? this.addForm(policy);
      form.policy = policy;
      const { quotas, candidates, trial } = policy;
      form.now.textContent = `In force: ${quotas}${stale ? " (Redis can't be read: maybe not on every server)" : ""}`;
      form.trial.textContent = candidates
        ? `Candidate ${candidates}, for ${trial.seconds} s: ${trial.would_refuse} more refused than the ${trial.refused} that were.`
        : "No candidate.";
      form.apply.disabled = form.drop.disabled = candidates === "";
    }
  }

  addForm({ name, quotas }) {
    const root = add(at("policies"), "form", { className: "policy", id: `policy-${name}` });
    add(root, "h3", { textContent: NAMES[name] ?? name });
    const form = { now: add(root, "p", { className: "now" }), trial: add(root, "p", { className: "trial" }) };
    const id = `quotas-${name}`;
    add(root, "label", { htmlFor: id, textContent: "New quotas, such as 2/1s,5/60s" });
    const field = add(root, "input", { id, value: quotas, required: true, autocomplete: "off", spellcheck: false });
    add(root, "button", { className: "try", textContent: "Try in shadow" });
    const button = (className, textContent, act) => {
      const it = add(root, "button", { type: "button", className, textContent });
      it.addEventListener("click", act);
      return it;
    };
    const put = (body, said) => attempt(async () => {
      await request("PUT", "/admin/policies/" + encodeURIComponent(name), body);
      return said;
    });
    root.addEventListener("submit", (event) => {
      event.preventDefault();
      const candidates = field.value.trim();
      put({ quotas: form.policy.quotas, candidates }, `${candidates} is tried in shadow on every server.`);
    });
    form.apply = button("apply", "Enforce the candidate", () => {
      const quotas = form.policy.candidates;
      put({ quotas, candidates: "" }, `${quotas} is enforced on every server.`);
    });
    form.drop = button("drop", "Drop the candidate", () => {
      put({ quotas: form.policy.quotas, candidates: "" }, "The candidate is dropped.");
    });
    button("reset", "As configured", () => attempt(async () => {
      await request("DELETE", "/admin/policies/" + encodeURIComponent(name));
      return "The configured quotas are enforced again.";
    }));
    this.forms.set(name, form);
    return form;
  }
}
