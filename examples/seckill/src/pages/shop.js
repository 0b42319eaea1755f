// The customer's page. What it shows follows from the level of the SKU, which it asks for once a second, and from where
// the customer is in the sale: in no line, entered, in line, at turn, or with an order.

const ENGLISH = {
  title: "Flash sale", forSale: "For sale", remaining: "Remaining", user: "Your user id",
  of: (left, all) => `${left} of ${all}`,
  enter: "Enter the draw", join: "Join the line", order: "Order now", buy: "Buy now", pay: "Pay (simulated)",
  opensIn: (time) => `Opens in ${time}`, drawsIn: (time) => `The draw is in ${time}`, opening: "Opening …",
  turnEndsIn: (time) => `Order within ${time}`, payIn: (time) => `Pay within ${time}`,
  againIn: (time) => `You can try again in ${time}`,
  "sale-not-open": "The sale is not open yet.", open: "The sale is open.",
  draws: "Enter before the opening: the draw decides who comes first, and not who is fastest.",
  entered: "You are in the draw. It makes no difference when you entered. Be here at the draw: a turn does not last.",
  turn: "It is your turn!",
  waiting: (place, time) => `You are number ${place} in line. If those before you use all their time and leave a piece, your turn comes within ${time}.`,
  line: "You can join the line: what others do not take is yours.",
  ordered: (id) => `Yours, once it is paid. Order ${id}.`, paid: (id) => `Yours! Order ${id}.`, soldOut: "Sold out.",
  taken: "Sold out for now: what is not paid in time comes back.",
  "turn-over": "Your turn is over. You can join the line again.", "paid-too-late": "The order was not paid in time.",
  "no-token": "Please pay where the shop has told you.", busy: "Too many requests from you or your network. Please wait.",
  banned: "Your account can't order at the moment.", "bad-user": "This user id can't be used.",
  outage: "The shop can't answer at the moment. This page tries again by itself.",
  failed: "That did not work. Please try again: it never orders twice.",
};
const CHINESE = {
  title: "限时抢购", forSale: "商品", remaining: "剩余", user: "用户名",
  of: (left, all) => `${left} / ${all}`,
  enter: "参加抽签", join: "排队", order: "立即下单", buy: "立即购买", pay: "付款（模拟）",
  opensIn: (time) => `距开售 ${time}`, drawsIn: (time) => `距抽签 ${time}`, opening: "即将开售…",
  turnEndsIn: (time) => `请在 ${time} 内下单`, payIn: (time) => `请在 ${time} 内付款`,
  againIn: (time) => `${time} 后可以重试`,
  "sale-not-open": "还没有开售。", open: "已经开售。",
  draws: "请在开售前参加：先后由抽签决定，与手速无关。",
  entered: "您已参加抽签。早参加晚参加机会相同。请在抽签时回来：轮到您时须限时下单。",
  turn: "轮到您了！",
  waiting: (place, time) => `您排在第 ${place} 位：若前面的人用满时间并留下一件，${time} 内轮到您。`,
  line: "您可以排队：别人放弃的就是您的。",
  ordered: (id) => `付款后就是您的。订单 ${id}。`, paid: (id) => `已经是您的了！订单 ${id}。`, soldOut: "已售罄。",
  taken: "暂时售罄：未按时付款的会重新开售。",
  "turn-over": "您的下单时间已过，可以重新排队。", "paid-too-late": "订单没有按时付款。",
  "no-token": "请到商店指定的地方付款。", busy: "您或您所在网络的请求过多，请稍候。",
  banned: "您的账号暂时不能下单。", "bad-user": "这个用户名不能使用。",
  outage: "商店暂时无法响应。本页会自动重试。",
  failed: "没有成功。请再试一次：不会重复下单。",
};
const isChinese = (navigator.languages ?? [navigator.language]).find((it) => /^(zh|en)/i.test(it))?.match(/^zh/i);
const text = isChinese ? CHINESE : ENGLISH;

const sale = JSON.parse(document.getElementById("sale").textContent);
const at = (id) => document.getElementById(id);
const seckill = () => "/seckill/" + encodeURIComponent(at("sku").value);

document.documentElement.lang = isChinese ? "zh-CN" : "en";
for (const it of document.querySelectorAll("[data-text]")) it.textContent = text[it.dataset.text];
document.title = text.title;
at("meter").ariaLabel = text.remaining;
for (const sku of sale.skus) at("sku").add(new Option(sku));
at("user").value = sessionStorage.user ?? localStorage.user ?? "guest-" + Math.random().toString(36).slice(2, 8);

/** The level of the SKU: undefined until it is known, and null while the shop does not answer. */
let level;
/** How many answers in a row there were not. */
let missed = 0;
/** Where the customer is. */
let mine = { state: "none" };
/** The ends of all waits, on the page's clock. */
const ends = {};
let isSending = false;
/** Grows when the SKU or the user changes, and with each action. An answer to what was asked in an earlier epoch is dropped. */
let epoch = 0;
/** What the last answer was, until something else happens. */
let said = "";

const endsIn = (ms) => (ms === null || ms === undefined ? null : performance.now() + ms);
const isOver = (end) => end === null || end === undefined || end <= performance.now();

/** Returns how long it is until then, such as 0:07.3 or, without digits, 1:02:00. */
function clock(end, digits = 1) {
  const unit = 10 ** digits;
  const all = Math.ceil((Math.max(0, end - performance.now()) * unit) / 1000);
  const [minutes, hours] = [Math.floor(all / unit / 60) % 60, Math.floor(all / unit / 3600)];
  const seconds = ((all % (60 * unit)) / unit).toFixed(digits).padStart(digits && digits + 3 || 2, "0");
  return (hours ? `${hours}:${String(minutes).padStart(2, "0")}` : minutes) + ":" + seconds;
}

/** Sends a request of the customer. Returns the problem's type in place of a body that is one. */
async function send(method, path, headers, body) {
  // fetch takes a header value as one byte a character.
  const id = String.fromCharCode(...new TextEncoder().encode(at("user").value));
  const options = { method, body, headers: { ...headers, "x-user-id": id }, cache: "no-store", signal: AbortSignal.timeout(5000) };
  const response = await fetch(path, options);
  const content = await response.json();
  const problem = response.ok ? null : content.type.split(/[/#]/).at(-1);
  return { status: response.status, content, problem, wait: Number(response.headers.get("retry-after")) * 1000 };
}

/** Takes over where the customer is. */
function take(content) {
  const changed = content.state !== mine.state;
  mine = content;
  ends.draw = endsIn(content.draws_in_ms);
  ends.turn = endsIn(content.turn_ends_in_ms);
  ends.pay = endsIn(content.pay_in_ms);
  ends.again = endsIn(content.again_in_ms);
  if (changed) said = "";
}

/** Asks where the customer is. */
async function look() {
  ends.again = endsIn(2000);
  const asked = epoch;
  try {
    const { status, content, wait } = await send("GET", seckill() + "/entry");
    if (asked !== epoch) return;
    if (status === 200) take(content);
    else if (wait) ends.again = endsIn(wait);
  } catch { /* It asks again. */ }
}

/** Returns what there is to do and to say. The button is there only if there is a use in it. */
function view() {
  if (!level) return { say: level === null ? text.outage : "" };
  const isOpen = isOver(ends.opening) && level.opens_in_ms === null;
  const { state, order_id, paid, place, estimate_ms } = mine;
  if (state === "ordered") {
    if (paid) return { say: text.paid(order_id) };
    if (isOver(ends.pay)) return { say: text["paid-too-late"] };
    return { act: "pay", timer: text.payIn(clock(ends.pay)), say: text.ordered(order_id) };
  }
  if (state === "over" || level.over) return { say: text.soldOut };
  if (state === "turn" && !isOver(ends.turn)) return { act: "order", timer: text.turnEndsIn(clock(ends.turn)), say: text.turn };
  if (state === "waiting") return { say: text.waiting(place, clock(performance.now() + estimate_ms, 0)) };
  if (state === "entered") return { timer: isOver(ends.draw) ? text.opening : text.drawsIn(clock(ends.draw)), say: text.entered };
  const timer = isOver(ends.opening) ? text.opening : text.opensIn(clock(ends.opening));
  if (level.mode === "draw") return isOpen ? { act: "join", say: text.line } : { act: "enter", timer, say: text.draws };
  if (!isOpen) return { timer, say: text["sale-not-open"] };
  return level.remaining === 0 ? { say: text.taken } : { act: "buy", say: text.open };
}

function set(id, textContent) {
  if (at(id).textContent !== textContent) at(id).textContent = textContent;
}

function render() {
  if (ends.wait && isOver(ends.wait)) [ends.wait, said] = [null, ""];
  const { act, timer = "", say } = view();
  // What was said is of the button, which may come back for another reason.
  if (!act) said = "";
  const waits = ends.wait && act && act !== "pay";
  set("timer", waits ? text.againIn(clock(ends.wait)) : timer);
  set("answer", (act && said) || say);
  const button = at("act");
  if (act) set("act", text[act]);
  [button.hidden, button.value] = [!act, act ?? ""];
  const isOff = Boolean(!act || waits || isSending);
  if (button.disabled === isOff) return;
  button.disabled = isOff;
  // A button that is disabled loses the focus.
  if (!isOff && document.activeElement === document.body) button.focus();
}

/** The same each time, so that a payment whose answer was lost is not a second one. */
const payment = () => JSON.stringify({ payment_id: "page-" + mine.order_id });
const actions = {
  enter: () => send("POST", seckill() + "/entries"),
  join: () => send("POST", seckill() + "/entries"),
  buy: () => send("POST", seckill() + "/orders"),
  order: () => send("POST", seckill() + "/orders", { "x-seckill-ticket": mine.ticket }),
  pay: () => send("POST", `/orders/${encodeURIComponent(mine.order_id)}/payment`, {}, payment()),
};

at("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const act = at("act").value;
  if (at("act").disabled || !act) return;
  const asked = ++epoch;
  isSending = true;
  sessionStorage.user = localStorage.user = at("user").value;
  said = "";
  render();
  const { content, problem, wait } = await actions[act]().catch(() => ({ problem: "lost" }));
  if (asked !== epoch) return;
  // A look that is under way may know nothing of it.
  const done = ++epoch;
  if (!problem) take(content.state ? content : { ...mine, ...content, state: "ordered" });
  else {
    if (problem !== "already-ordered") said = text.failed;
    if (wait) ends.wait = endsIn(wait);
    // Where the customer is may be another place than the page believes: maybe it did work.
    await look();
    if (done !== epoch) return;
    // The layer takes no such user.
    const kinds = { "about:blank": "bad-user", "quota-exceeded": "busy", "abnormal-usage-detected": "banned", "sold-out": "taken" };
    said = text[kinds[problem] ?? problem] ?? said;
  }
  isSending = false;
  showLevel();
});

/** Reads the level, and when the sale opens: by the server's clock, whatever this one says. */
async function showLevel() {
  const [sku, sent] = [at("sku").value, performance.now()];
  let read = null;
  try {
    const response = await fetch(seckill(), { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (response.ok) read = await response.json();
  } catch { /* As a 503. */ }
  if (sku !== at("sku").value) return;
  missed = read ? 0 : missed + 1;
  if (read) {
    const isFirst = !level;
    const wasClosed = level?.opens_in_ms;
    level = read;
    // From before the request: the page never takes the sale for closed too long.
    ends.opening = level.opens_in_ms ? sent + level.opens_in_ms : null;
    set("count", text.of(level.remaining, level.stock));
    Object.assign(at("meter"), { max: level.stock, value: level.remaining });
    if (isFirst || (wasClosed && !level.opens_in_ms && mine.state === "none")) await look();
  } else if (!level || missed > 2) level = null;
  render();
}

function restart() {
  epoch += 1;
  isSending = false;
  level = undefined;
  mine = { state: "none" };
  for (const name of Object.keys(ends)) delete ends[name];
  said = "";
  showLevel();
}

at("sku").addEventListener("change", restart);
at("user").addEventListener("change", restart);
setInterval(() => {
  const isLate = { turn: isOver(ends.turn), ordered: isOver(ends.pay) && !mine.paid }[mine.state];
  if (level && isOver(ends.again) && (ends.again || isLate)) look();
  render();
}, 100);
setInterval(showLevel, 1000);
restart();
