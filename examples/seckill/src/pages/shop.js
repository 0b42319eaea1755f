// The customer's page: it counts down to the opening, and after a 429 to the next attempt.

const sale = JSON.parse(document.getElementById("sale").textContent);
const at = (id) => document.getElementById(id);
const seckill = () => "/seckill/" + encodeURIComponent(at("sku").value);

/** The wait of each user id, and when it ends on the page's clock. */
const waits = new Map();
let opensAt = null;
let isSending = false;
let hadFocus = false;
let announced = Infinity;

for (const sku of sale.skus) at("sku").add(new Option(sku));
at("user").value = "guest-" + Math.random().toString(36).slice(2, 8);

/** Shows a text, which a screen reader reads out. */
function say(text, kind) {
  at("answer").textContent = text;
  at("answer").className = kind;
}

function clockTime(seconds) {
  const two = (number) => String(number).padStart(2, "0");
  const [minutes, hours] = [Math.floor(seconds / 60) % 60, Math.floor(seconds / 3600)];
  return hours > 0
    ? `${hours}:${two(minutes)}:${two(seconds % 60)}`
    : `${minutes}:${two(seconds % 60)}`;
}

/** Returns a time in words, for what a screen reader reads out. */
function inWords(seconds) {
  const parts = [[Math.floor(seconds / 3600), "hour"], [Math.floor(seconds / 60) % 60, "minute"], [seconds % 60, "second"]];
  const words = parts.filter(([count]) => count > 0).map(([count, unit]) => `${count} ${unit}${count > 1 ? "s" : ""}`);
  return words.join(" ");
}

const secondsUntil = (time) => Math.ceil((time - performance.now()) / 1000);

/** Reads the stock, and when the sale opens: by the server's clock, whatever this one says. */
async function showStock() {
  try {
    const sent = performance.now();
    const response = await fetch(seckill());
    if (!response.ok) return;
    const { stock, remaining, opens_in_ms } = await response.json();
    at("count").textContent = remaining + " of " + stock;
    at("meter").max = stock;
    at("meter").value = remaining;
    const wasClosed = opensAt !== null;
    // From before the request: the page never takes the sale for closed too long.
    opensAt = opens_in_ms === null ? null : sent + opens_in_ms;
    if (wasClosed && opensAt === null) say("The sale is open.", "good");
    render();
  } catch { /* The next round may succeed. */ }
}

/** Shows what there is to wait for. The button waits with the customer: an earlier order is refused. */
function render() {
  const wait = waits.get(at("user").value);
  const left = wait ? secondsUntil(wait.ends) : 0;
  if (wait && left <= 0) {
    waits.delete(at("user").value);
    say("You can try again now.", "good");
  }
  const opening = opensAt === null ? 0 : secondsUntil(opensAt);
  let text = "";
  if (opensAt !== null) text = opening > 0 ? `Opens in ${clockTime(opening)}` : "Opening …";
  else if (left > 0) text = `You can try again in ${clockTime(left)}`;
  if (at("timer").textContent !== text) at("timer").textContent = text;
  announceOpening(opening);
  enable(text === "" && !isSending);
}

/** Tells the time to the opening now and then: when the page learns it, and ten seconds before. */
function announceOpening(seconds) {
  if (opensAt === null || seconds <= 0) return;
  if (announced < Infinity && !(seconds <= 10 && announced > 10)) return;
  announced = seconds;
  say(`The sale opens in ${inWords(seconds)}.`, "");
}

/** A button that is disabled loses the focus, so it gets it back. */
function enable(isEnabled) {
  const button = at("buy");
  if (button.disabled === !isEnabled) return;
  if (!isEnabled) hadFocus = document.activeElement === button;
  button.disabled = !isEnabled;
  const isFree = document.activeElement === document.body || document.activeElement === null;
  if (isEnabled && hadFocus && isFree) button.focus();
}

// The server says where it looks for the user id.
function orderRequest(user) {
  const { place, name } = sale.userFrom;
  const request = { url: seckill() + "/orders", options: { method: "POST" } };
  if (place === "header") request.options.headers = { [name]: utf8Bytes(user) };
  if (place === "query") request.url += "?" + new URLSearchParams({ [name]: user });
  if (place === "cookie") document.cookie = `${name}=${user};path=/;samesite=strict`;
  return request;
}

// fetch takes a header value as one byte a character.
function utf8Bytes(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

async function order() {
  const user = at("user").value;
  const { url, options } = orderRequest(user);
  const response = await fetch(url, options);
  const body = await response.json();
  const wait = Number(response.headers.get("retry-after"));
  if (response.status === 201) {
    say(`Yours! Order ${body.order_id}.`, "good");
  } else if (wait > 0) {
    // Retry-After is true: there is no use in an earlier attempt.
    waits.set(user, { ends: performance.now() + wait * 1000 });
    const title = response.status === 429 ? "Too many requests" : body.title;
    say(`${title}. You can try again in ${inWords(wait)}.`, "bad");
  } else {
    say(body.title + (body.order_id ? `: ${body.order_id}` : "") + ".", "bad");
  }
}

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (at("buy").disabled) return;
  isSending = true;
  render();
  try {
    await order();
  } catch (error) {
    say("The shop did not answer: " + error.message, "bad");
  }
  isSending = false;
  render();
  showStock();
});

at("sku").addEventListener("change", showStock);
at("user").addEventListener("input", render);
setInterval(render, 200);
setInterval(showStock, 1000);
showStock();
