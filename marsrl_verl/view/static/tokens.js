// A response, token by token, coloured by one of its columns.
"use strict";

function colouring(name, values) {
  const known = values.filter((value) => value !== null);
  if (name === "advantage") {
    const most = Math.max(...known.map(Math.abs), 1e-9);
    return { of: (value) => diverging(value, most), legend: `−${shown(most)} to +${shown(most)}` };
  }
  if (name === "mask") return { of: (value) => (value ? "transparent" : "var(--none)"), legend: "grey: not trained" };
  const [low, high] = [Math.min(...known), Math.max(...known)];
  return { of: (value) => sequential(value, low, high), legend: `${shown(low)} to ${shown(high)}` };
}

function Tokens({ found, column }) {
  const { line, pieces, columns } = found;
  const values = columns[column];
  if (!pieces) {
    return html`<${Fragment}><pre class="text">${line.response}</pre>
      <p class="note">The run's tokenizer is not on this machine: tokens have no colours.</p></${Fragment}>`;
  }
  const colours = values ? colouring(column, values) : null;
  const told = (k) => Object.entries(columns).map(([name, some]) => `${name} ${shown(some[k])}`).join("\n");
  // Neighbours with the same colour are one element: long responses have tens of thousands of tokens.
  const runs = [];
  pieces.forEach((piece, k) => {
    const colour = colours && values[k] !== null ? colours.of(values[k]) : "transparent";
    const last = runs[runs.length - 1];
    if (last && last.colour === colour && last.same === (values ? values[k] : null)) last.text += piece;
    else runs.push({ text: piece, colour, first: k, same: values ? values[k] : null });
  });
  return html`<${Fragment}>
    ${colours && html`<p class="note">${column}: ${colours.legend}</p>`}
    <pre class="text">${runs.map((one) => html`<span style=${{ background: one.colour }}
      title=${`token ${one.first}\n${told(one.first)}`}>${one.text}</span>`)}</pre>
  </${Fragment}>`;
}

// What happened in a trajectory: messages as a dialogue, calls of tools with what came back, anything else by its keys.
function Events({ events }) {
  if (!events.length) return html`<${Message}>There are none.</${Message}>`;
  return html`<ol class="events">${events.map((one) => {
    const { role, text, tool, arguments: given, result, turn, ...rest } = one;
    const facts = Object.entries(rest).filter(([, value]) => value !== null && value !== false);
    return html`<li class=${role ? `says ${role}` : tool ? "call" : "fact"}>
      <header>${turn !== undefined && `turn ${turn} · `}<b>${role || tool || ""}</b>
        ${facts.map(([name, value]) => html` <span>${words(name)} ${typeof value === "object" ? JSON.stringify(value) : shown(value)}</span>`)}</header>
      ${text && html`<pre>${text}</pre>`}
      ${given !== undefined && html`<pre>${typeof given === "string" ? given : JSON.stringify(given, null, 1)}</pre>`}
      ${result !== undefined && html`<pre class="result">${typeof result === "string" ? result : JSON.stringify(result, null, 1)}</pre>`}
    </li>`;
  })}</ol>`;
}

const SHOWN_ELSEWHERE = new Set(["prompt", "response", "final", "token_ids", "events", "schema_version"]);

function Detail({ run, file, row, onOpen, rows }) {
  const { data, error } = useData(query(`runs/${run}/line`, { file, row }));
  const [tab, setTab] = useState("response");
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
  const parent = line.parent && rows.find((one) => one.trajectory === line.parent);
  const left = line.fork && rows.find((one) => one.trajectory === line.fork.trajectory);
  const others = rows.filter((one) => one.trajectory === line.trajectory);
  return html`<article class="detail">
    <header>
      <h3>${line.role} <small>${line.stage} · ${line.trajectory}</small></h3>
      <p><span class="chip" style=${{ background: rewardColour(line.reward) }}>reward ${shown(line.reward)}</span>
        ${line.finish_reason} · ${shown(line.tokens)} tokens · step ${line.step}
        ${line.answer !== undefined && line.answer !== null && html` · answer <b>${String(line.answer)}</b>`}
        ${line.verdict && html` · verdict <b>${line.verdict}</b>`}
        ${" "}· reference <b>${line.problem.ground_truth}</b></p>
      ${line.error && html`<p class="worse">${line.error}</p>`}
      <p>${parent && html`<button onClick=${() => onOpen(parent)}>answers ${parent.trajectory}</button>`}
        ${left && html`<button onClick=${() => onOpen(left)}>left ${left.trajectory} at token ${line.fork.token}</button>`}
        ${others.length > 1 && others.map((one) => html`<button class=${one.sequence === line.sequence ? "on" : ""}
          onClick=${() => onOpen(one)}>${one.role} ${one.sequence}</button>`)}</p>
    </header>
    <nav>${["response", "prompt", "events", "fields"].map((name) => html`<button class=${tab === name ? "on" : ""}
        onClick=${() => setTab(name)}>${name}${name === "events" ? ` (${line.events.length})` : ""}</button>`)}
      ${tab === "response" && html`<label>colour <select value=${used} onChange=${(event) => setColumn(event.target.value)}>
        <option value="">none</option>${columns.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>`}
    </nav>
    ${tab === "response" && html`<${Tokens} found=${data} column=${used} />`}
    ${tab === "prompt" && html`<pre class="text">${line.prompt}</pre>`}
    ${tab === "events" && html`<${Events} events=${line.events} />`}
    ${tab === "fields" && html`<table class="facts"><tbody>${Object.entries(line)
      .filter(([name]) => !SHOWN_ELSEWHERE.has(name))
      .map(([name, value]) => html`<tr><td>${words(name)}</td><td>${value !== null && typeof value === "object"
        ? JSON.stringify(value) : shown(value, 6)}</td></tr>`)}</tbody></table>`}
  </article>`;
}

const typing = (event) => /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName || "") || event.ctrlKey || event.metaKey;
