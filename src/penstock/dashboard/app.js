// The page: logging in, going from place to place, and the one stream of events that all places share.

import { Follower, ask, logIn, logOut, loggedIn, onRefused } from "./api.js";
import { fill, h, legible, say, setText, unsay } from "./dom.js";
import { cluster } from "./cluster.js";
import { connections } from "./connections.js";
import { exchange, exchanges } from "./exchanges.js";
import { links } from "./links.js";
import { log } from "./log.js";
import { overview } from "./overview.js";
import { policies } from "./policies.js";
import { queue } from "./queue.js";
import { queues } from "./queues.js";
import { sql } from "./sql.js";
import { streams } from "./streams.js";
import { topics } from "./topics.js";
import { users } from "./users.js";

const PLACES = [
  ["", "Overview", overview],
  ["queues", "Queues", queues],
  ["exchanges", "Exchanges", exchanges],
  ["policies", "Policies", policies],
  ["topics", "Topics", topics],
  ["streams", "Streams", streams],
  ["connections", "Connections", connections],
  ["users", "Users", users],
  ["log", "Log", log],
  ["cluster", "Cluster", cluster],
  ["links", "Links", links],
  ["sql", "SQL", sql],
  ["queue", null, queue, "queues"],
  ["exchange", null, exchange, "exchanges"],
];

const top = document.getElementById("top");
const nav = document.getElementById("nav");
const main = document.getElementById("main");
const alarms = document.getElementById("alarms");
const link = document.getElementById("link");

let present = null; // the place that is shown: {node, title, query?, event?, close?}
let follower = null;

function place() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const found = PLACES.find(([name]) => name === parts[0]) ?? PLACES[0];
  return [found, parts.slice(1)];
}

function leave() {
  present?.close?.();
  follower?.close();
  present = follower = null;
}

function go() {
  if (!loggedIn()) return showLogin();
  leave();
  const [[name, title, open, within], names] = place();
  top.hidden = false;
  fill(nav, PLACES.filter(([, shown]) => shown).map(([one, shown]) => h("a", {
    href: `#/${one}`, "aria-current": one === (within ?? name) ? "page" : null,
  }, shown)));
  present = open(...names);
  document.title = `${legible(present.title ?? title)} · Penstock`;
  fill(main, present.node);
  const shown = present;
  follower = new Follower({ interval: "2s", top: 0, ...present.query }, {
    event: (kind, data) => {
      if (kind === "stats") showAlarms(data.alarms);
      shown.event?.(kind, data);
    },
    state: (state, text) => {
      link.className = `dot ${state}`;
      link.setAttribute("aria-label", text);
      link.title = text;
      if (state === "refused") say(text, true);
    },
  });
  return undefined;
}

function showAlarms(list) {
  const texts = list.map((one) => legible(`${one.alarm}: ${one.reason}`));
  if (alarms.textContent !== texts.join("")) fill(alarms, texts.map((text) => h("p", {}, text)));
}

function showLogin(reason = "") {
  leave();
  top.hidden = true;
  fill(alarms);
  document.title = "Log in · Penstock";
  const user = h("input", { name: "user", autocomplete: "username", required: true, autofocus: true });
  const password = h("input", { name: "password", type: "password", autocomplete: "current-password" });
  const problem = h("p", { class: "failed", role: "alert", hidden: !reason }, reason);
  fill(main, h("form", {
    class: "box login",
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        begin(await logIn(user.value, password.value));
      } catch (error) {
        fill(problem, error.message).hidden = false;
        password.select();
      }
    },
  }, h("h1", {}, "Penstock"), h("label", {}, "User", user), h("label", {}, "Password", password), problem,
  h("p", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Log in"))));
  user.focus();
}

function begin(who) {
  setText(document.getElementById("user"), who.name);
  go();
}

document.getElementById("leave").addEventListener("click", () => {
  logOut();
  showLogin();
});
onRefused(() => {
  logOut();
  showLogin("The login is not good any more.");
});
window.addEventListener("hashchange", () => {
  unsay();
  go();
  main.focus({ preventScroll: true });
  window.scrollTo(0, 0);
});

if (loggedIn()) {
  ask("whoami").then(begin, (error) => {
    if (error.status === 401) logOut();
    showLogin(error.message);
  });
} else {
  showLogin();
}
