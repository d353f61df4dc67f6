// A response, token by token, coloured by one of its columns.
"use strict";

function colouring(name, values) {
  const known = values.filter((value) => value !== null);
  if (name === "advantage") {
    const most = Math.max(...known.map(Math.abs), 1e-9);
    return { of: (value) => diverging(value, most), legend: `−${shown(most)} to +${shown(most)}` };
  }
  if (name === "mask") return { of: (value) => (value ? "transparent" : "var(--none)"), legend: "grey: not chosen by the policy, not trained; underlined: first and last token of what is" };
  if (name.startsWith("ratio")) {
    const most = Math.max(...known.map((value) => Math.abs(Math.log(value))).filter(Number.isFinite), 1e-3);
    return { of: (value) => diverging(Math.log(value), most), legend: `${shown(Math.exp(-most))} (orange) to ${shown(Math.exp(most))} (blue); 1 has no colour` };
  }
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return { of: (value) => sequential(value, low, high), legend: `${shown(low)} to ${shown(high)}` };
}

// First and last of the tokens that the policy chose, wherever others stand between them.
function edges(mask) {
  return mask.map((value, k) => value === 1 && (mask[k - 1] === 0 || mask[k + 1] === 0));
}

// Tokens of a response from `begin` to `end`.
function Tokens({ found, column, begin = 0, end = Infinity }) {
  const { pieces, columns } = found;
  const values = columns[column];
  const colours = values ? colouring(column, values) : null;
  const marked = column === "mask" ? edges(values) : [];
  const told = (k) => Object.entries(columns).map(([name, some]) => `${name} ${shown(some[k])}`).join("\n");
  // Neighbours with the same colour are one element: long responses have tens of thousands of tokens.
  const runs = [];
  pieces.slice(begin, end).forEach((piece, place) => {
    const k = begin + place;
    const colour = colours && values[k] !== null ? colours.of(values[k]) : "transparent";
    const last = runs[runs.length - 1];
    if (last && last.colour === colour && last.same === (values ? values[k] : null) && !marked[k] && !last.edge) last.text += piece;
    else runs.push({ text: piece, colour, first: k, same: values ? values[k] : null, edge: marked[k] });
  });
  return html`<pre class="text">${runs.map((one) => html`<span class=${one.edge ? "edge" : ""} style=${{ background: one.colour }}
    title=${`token ${one.first}\n${told(one.first)}`}>${one.text}</span>`)}</pre>`;
}

const Legend = ({ found, column }) => found.columns[column]
  && html`<p class="note">${column}: ${colouring(column, found.columns[column]).legend}</p>`;

function WholeResponse({ found, column }) {
  if (found.pieces) return html`<${Fragment}><${Legend} found=${found} column=${column} /><${Tokens} found=${found} column=${column} /></${Fragment}>`;
  return html`<${Fragment}><pre class="text">${found.line.response}</pre>
    <p class="note">The run's tokenizer is not on this machine: tokens have no colours.</p></${Fragment}>`;
}

const facts = (fields) => Object.entries(fields).filter(([, value]) => value !== null && value !== undefined && value !== false && value !== ""
  && !(typeof value === "object" && Object.keys(value).length === 0));
const Facts = ({ fields }) => facts(fields).map(([name, value]) => html` <span>${words(name)} <b>${
  typeof value === "object" ? JSON.stringify(value) : shown(value)}</b></span>`);
const asText = (value) => (typeof value === "string" ? value : typeof value === "object" && value !== null
  && Object.keys(value).length === 1 ? String(Object.values(value)[0]) : JSON.stringify(value, null, 1));

// A dialogue's messages, or what an agent wrote, called and read; and who left it there.
function Turns({ found, column, rows, onOpen }) {
  const source = (one) => (one.sequence === found.line.sequence ? found : found.others[one.sequence]);
  const leave = (one) => (one.sampled || one.end === null ? [] : rows.filter((other) => other.sequence === 0
    && other.fork === found.line.trajectory && other.left_at === one.end));
  const agents = [...new Set(found.turns.map((one) => one.role).filter(Boolean))];
  const colour = (role) => (agents.length > 1 ? SERIES[agents.indexOf(role) % SERIES.length] : "var(--line)");
  return html`<${Fragment}><${Legend} found=${found} column=${column} />
    <ol class="events">${found.turns.map((one) => {
      const others = leave(one);
      return html`<li style=${{ borderColor: one.sampled ? colour(one.role) : one.events.some((each) => each.tool) ? "#cc79a7" : "var(--line)" }}>
        ${one.sampled && html`<header>turn ${one.turn} · <b>${one.role}</b>${one.events.map(({ turn, role, tokens, same, ...rest }) => html`
          <span>${shown(tokens)} tokens</span><${Facts} fields=${rest} />`)}</header>`}
        ${!one.sampled && one.events.map(({ kind, turn, tool, arguments: given, call_id, outcome, entropy, entropy_change, fork_probability, forks_wanted, executed, attempts, waited, by, ...rest }) => html`
          <header><b>${tool || ""}</b> ${outcome && html`<span class=${outcome === "ok" ? "" : "worse"}>${outcome}</span>`}
            <${Facts} fields=${executed === false ? { ...rest, "not run": true } : rest} /></header>
          ${given !== undefined && given !== null && html`<pre>${asText(given)}</pre>`}
          ${forks_wanted !== undefined && html`<p class="fork">entropy ${shown(entropy)}, change ${shown(entropy_change)},
            fork probability ${shown(fork_probability)}: <b>${forks_wanted ? `${forks_wanted} wanted` : "no fork"}</b></p>`}`)}
        ${one.begin !== null && html`<${Tokens} found=${source(one)} column=${column} begin=${one.begin} end=${one.end} />`}
        ${others.length > 0 && html`<p class="fork">${others.length} left here, mean reward ${
          shown(mean(others.map((other) => other.reward).filter((value) => value !== null)))}:
          ${others.map((other) => html`<button onClick=${() => onOpen(other)}>${other.trajectory.split("/").pop()} · ${shown(other.reward)}</button>`)}</p>`}
      </li>`;
    })}</ol></${Fragment}>`;
}

// What happened in a trajectory: messages as a dialogue, calls of tools with what came back, anything else by its keys.
function Events({ events }) {
  if (!events.length) return html`<${Message}>There are none.</${Message}>`;
  return html`<ol class="events">${events.map((one) => {
    const { role, text, tool, arguments: given, result, turn, ...rest } = one;
    return html`<li class=${role ? `says ${role}` : tool ? "call" : "fact"}>
      <header>${turn !== undefined && `turn ${turn} · `}<b>${role || tool || ""}</b>
        <${Facts} fields=${rest} /></header>
      ${text && html`<pre>${text}</pre>`}
      ${given !== undefined && html`<pre>${typeof given === "string" ? given : JSON.stringify(given, null, 1)}</pre>`}
      ${result !== undefined && html`<pre class="result">${typeof result === "string" ? result : JSON.stringify(result, null, 1)}</pre>`}
    </li>`;
  })}</ol>`;
}

// From the first trajectory to this one.
function chainOf(rows, chosen) {
  const by = new Map(rows.filter((one) => one.sequence === 0).map((one) => [one.trajectory, one]));
  const chain = [chosen];
  for (let at = chosen; (at = by.get(at.fork || at.parent)) && !chain.includes(at);) chain.unshift(at);
  return chain;
}

function Chain({ rows, chosen, onOpen }) {
  const chain = chainOf(rows, chosen);
  const next = new Map();
  for (const one of rows) {
    if (one.sequence === 0 && (one.fork || one.parent) === chosen.trajectory) next.set(one.stage, [...(next.get(one.stage) || []), one]);
  }
  if (chain.length === 1 && next.size === 0) return null;
  const named = (one) => `${words(one.stage)} ${one.trajectory.split("/").pop()} · reward ${shown(one.reward)}`;
  return html`<p class="chain">${chain.map((one, k) => html`${k > 0 && html`<span>${one.left_at === null ? "→" : `left at token ${one.left_at} →`}</span>`}
      <button class=${one === chosen ? "on" : ""} onClick=${() => onOpen(one)} title=${one.trajectory}>${named(one)}</button>`)}
    ${[...next].map(([stage, some]) => html`<span>→</span><button onClick=${() => onOpen(some[0])}>${some.length} × ${words(stage)}, mean reward ${
      shown(mean(some.map((one) => one.reward).filter((value) => value !== null)), 2)}</button>`)}</p>`;
}

// One response of a chain of stages.
function Link({ run, one, column }) {
  const { data } = useData(query(`runs/${run}/line`, { file: one.file, row: one.row }));
  if (!data) return null;
  const { line } = data;
  return html`<li class="says"><header><b>${words(one.stage)}</b>
      <span class="chip" style=${{ background: rewardColour(line.reward) }}>reward ${shown(line.reward)}</span>
      <${Facts} fields=${{ answer: line.answer, verdict: line.verdict }} /></header>
    ${data.pieces ? html`<${Tokens} found=${data} column=${column} />` : html`<pre class="text">${line.response}</pre>`}</li>`;
}

const SHOWN_ELSEWHERE = new Set(["prompt", "response", "final", "token_ids", "events", "schema_version"]);

function Detail({ run, file, row, onOpen, rows }) {
  const { data, error } = useData(query(`runs/${run}/line`, { file, row }));
  const [wanted, setTab] = useState(null);
  const [column, setColumn] = useState("advantage");
  useEffect(() => {
    const press = (event) => {
      if (event.key !== "c" || typing(event) || !data) return;
      const all = ["", ...Object.keys(data.columns)];
      const now = column === "" || all.includes(column) ? column : all[1];
      setColumn(all[(all.indexOf(now) + 1) % all.length]);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [data, column]);
  if (error) return html`<${Message}>${error}</${Message}>`;
  if (!data) return html`<${Message}>Reading…</${Message}>`;
  const { line } = data;
  const columns = Object.keys(data.columns);
  const used = columns.includes(column) ? column : column === "" ? "" : columns[0];
  const chosen = rows.find((one) => one.file === file && String(one.row) === String(row));
  const stages = chosen ? chainOf(rows, chosen).filter((one, k, all) => k + 1 === all.length || all[k + 1].left_at === null) : [];
  const others = rows.filter((one) => one.trajectory === line.trajectory && one.file === file);
  const tabs = [...(data.turns.length && data.pieces ? ["turns"] : []), ...(stages.length > 1 ? ["chain"] : []), "response", "prompt", "events", "fields"];
  const tab = tabs.includes(wanted) ? wanted : tabs[0];
  return html`<article class="detail">
    <header>
      <h3>${line.role} <small>${line.stage} · ${line.trajectory}</small></h3>
      <p><span class="chip" style=${{ background: rewardColour(line.reward) }}>reward ${shown(line.reward)}</span>
        ${line.finish_reason} · ${shown(line.tokens)} tokens · step ${line.step}
        ${line.answer !== undefined && line.answer !== null && html` · answer <b>${String(line.answer)}</b>`}
        ${line.verdict && html` · verdict <b>${line.verdict}</b>`}
        ${" "}· reference <b>${line.problem.ground_truth}</b></p>
      ${line.error && html`<p class="worse">${line.error}</p>`}
      ${chosen && html`<${Chain} rows=${rows} chosen=${chosen} onOpen=${onOpen} />`}
      <p>${others.length > 1 && others.map((one) => html`<button class=${one.sequence === line.sequence ? "on" : ""}
          onClick=${() => onOpen(one)}>${one.role} ${one.sequence}</button>`)}</p>
    </header>
    <nav>${tabs.map((name) => html`<button class=${tab === name ? "on" : ""}
        onClick=${() => setTab(name)}>${name}${name === "events" ? ` (${line.events.length})` : ""}</button>`)}
      ${["turns", "chain", "response"].includes(tab) && html`<label>colour <select value=${used} onChange=${(event) => setColumn(event.target.value)}>
        <option value="">none</option>${columns.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}
    </nav>
    ${tab === "turns" && html`<${Turns} found=${data} column=${used} rows=${rows} onOpen=${onOpen} />`}
    ${tab === "chain" && html`<ol class="events">${stages.map((one) => html`<${Link} key=${identity(one)} run=${run} one=${one} column=${used} />`)}</ol>`}
    ${tab === "response" && html`<${WholeResponse} found=${data} column=${used} />`}
    ${tab === "prompt" && html`<pre class="text">${line.prompt}</pre>`}
    ${tab === "events" && html`<${Events} events=${line.events} />`}
    ${tab === "fields" && html`<table class="facts"><tbody>${Object.entries(line)
      .filter(([name]) => !SHOWN_ELSEWHERE.has(name))
      .map(([name, value]) => html`<tr><td>${words(name)}</td><td>${value !== null && typeof value === "object"
        ? JSON.stringify(value) : shown(value, 6)}</td></tr>`)}</tbody></table>`}
  </article>`;
}

const typing = (event) => /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName || "") || event.ctrlKey || event.metaKey;
