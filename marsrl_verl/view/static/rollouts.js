// Problems, their trajectories, and one trajectory's tokens.
"use strict";

const PAGE = 200;
const FILTERS = ["file", "role", "stage", "finish", "text", "low", "high", "first", "last", "trained", "reference"];

function usePages(path, version) {
  const [found, setFound] = useState({ path: null, total: 0, lines: 0, rows: [] });
  const asked = useRef(new Set());
  const more = (at) => {
    const name = `${path}|${at}`;
    if (asked.current.has(name)) return;
    asked.current.add(name);
    const joined = path + (path.includes("?") ? "&" : "?") + `offset=${at}&limit=${PAGE}`;
    Data.get(joined).then((page) => setFound((now) => {
      const rows = at === 0 ? page.rows : now.path === path ? [...now.rows, ...page.rows] : now.rows;
      return at === 0 || now.path === path ? { path, total: page.total, lines: page.lines, rows } : now;
    }), (error) => setFound({ path, total: 0, rows: [], error: String(error.message || error) }));
  };
  useEffect(() => { asked.current = new Set(); more(0); }, [path, version]);
  return { ...found, more: () => found.path === path && found.rows.length < found.total && more(found.rows.length) };
}

// What is typed counts after a moment; until then it is kept here, whatever is drawn anew meanwhile.
function Field({ value, commit, ...rest }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  const now = (said) => { clearTimeout(timer.current); if (said !== value) commit(said); };
  useEffect(() => setText(value), [value]);
  return html`<input ...${rest} value=${text} onChange=${(event) => now(event.target.value)}
    onInput=${(event) => {
      const said = event.target.value;
      setText(said);
      clearTimeout(timer.current);
      timer.current = setTimeout(() => now(said), 500);
    }} />`;
}

function Filters({ choices, fields, change }) {
  const select = (name, label, some) => html`<label>${label} <select value=${fields[name] || ""} data-filter=${name}
    onChange=${(event) => change({ [name]: event.target.value })}><option value="">all</option>
    ${some.map((one) => html`<option value=${one}>${one}</option>`)}</select></label>`;
  const yes = (name, label) => html`<label>${label} <select value=${fields[name] || ""} data-filter=${name}
    onChange=${(event) => change({ [name]: event.target.value })}><option value="">all</option>
    <option value="true">yes</option><option value="false">no</option></select></label>`;
  const number = (name, label) => html`<${Field} type="number" step="any" placeholder=${label} aria-label=${label}
    data-filter=${name} value=${fields[name] || ""} commit=${(said) => change({ [name]: said })} />`;
  return html`<div class="filters">
    <${Field} type="search" id="search" placeholder="text in prompt or response (/)" value=${fields.text || ""}
      data-filter="text" commit=${(said) => change({ text: said })} />
    ${select("file", "file", choices.file)}${select("role", "role", choices.role)}
    ${select("stage", "stage", choices.stage)}${select("finish", "end", choices.finish_reason)}
    ${yes("trained", "trained")}${yes("reference", "has the reference")}
    <label>reward ${number("low", "from")}${number("high", "to")}</label>
    <label>step ${number("first", "from")}${number("last", "to")}</label>
  </div>`;
}

function ProblemRow({ one, on, onOpen }) {
  return html`<button class=${`problem${on ? " on" : ""}`} onClick=${onOpen}>
    <span class="chip" style=${{ background: rewardColour(one.reward_mean) }}>${shown(one.reward_mean, 2)}</span>
    <span class="question">${one.question_first}</span>
    <small>${one.file.split(".")[0].replace("_", " ")} · ${one.row_count} rollouts · ${one.advantage_count} trained</small>
  </button>`;
}

// The rollouts of a problem in one run. Of another run than the list's it is what asks the same question.
function Problem({ run, fields, question, version, open, names, opened, other = false }) {
  const everywhere = fields.over === "steps";
  const evaluation = fields.of?.startsWith("eval");
  const path = fields.problem ? query(`runs/${run}/lines`, {
    problem: (everywhere || other) && question ? undefined : fields.problem, question: everywhere || other ? question : undefined,
    file: everywhere || !evaluation ? undefined : fields.of, limit: 2000,
  }) : null;
  const { data: found, path: answered } = useData(path, version);
  const same = (one) => everywhere || !other || one.file.startsWith("eval") === evaluation;
  const all = found ? found.rows.filter(same) : [];
  // Asked more than once: what has the same id, else what was asked first.
  const id = all.some((one) => one.problem === fields.problem) ? fields.problem : all[0]?.problem;
  const rows = everywhere ? all : all.filter((one) => one.problem === id);
  const chosen = rows.find((one) => one.file === fields[names[0]] && String(one.row) === fields[names[1]]) || null;
  useEffect(() => {
    if (rows.length && !chosen && answered === path) open(rows[0], names, true);
  }, [found, chosen === null]);
  if (opened) opened.current = { rows, chosen };
  if (found && rows.length === 0) return html`<${Message}>This run has no such problem.</${Message}>`;
  return html`<${Fragment}>
    ${rows.length > 0 && html`<${Structure} rows=${rows} chosen=${chosen} onOpen=${(one) => open(one, names)} />`}
    ${chosen && html`<${Detail} run=${run} file=${chosen.file} row=${chosen.row} rows=${rows} onOpen=${(one) => open(one, names)} />`}
  </${Fragment}>`;
}

function Rollouts({ run, runs, version, fields }) {
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, fields[name]]));
  const { data: choices } = useData(`runs/${run}/choices`, version);
  const list = usePages(query(`runs/${run}/problems`, wanted), version);
  // What is changed is the address as it is now: what was drawn last may be of an earlier one.
  const go = (changed, replace = false) => {
    const now = readAddress();
    if (now.view === "rollouts") writeAddress("rollouts", { ...now.fields, ...changed }, replace);
  };
  const place = list.rows.findIndex((one) => one.problem === fields.problem && one.file === fields.of);
  const none = { in: undefined, row: undefined, in2: undefined, row2: undefined };
  const open = (one, names = ["in", "row"], replace = false) => go({ [names[0]]: one.file, [names[1]]: one.row }, replace);
  const openProblem = (one) => go({ problem: one.problem, of: one.file, question: one.question_first, ...none });
  const opened = useRef({ rows: [], chosen: null });
  const beside = runs.length > 1 && fields.beside !== undefined ? Number(fields.beside) : null;
  const others = runs.map((one, k) => [one, k]).filter(([, k]) => k !== run);
  useEffect(() => {
    if (list.rows.length && !readAddress().fields.problem) openProblem(list.rows[0]);
  }, [list.path, list.rows.length]);
  useEffect(() => {
    const press = (event) => {
      if (event.key === "/" && !typing(event)) { event.preventDefault(); document.getElementById("search").focus(); }
      if (typing(event)) return;
      if (event.key === "j" && place + 1 < list.rows.length) openProblem(list.rows[place + 1]);
      if (event.key === "k" && place > 0) openProblem(list.rows[place - 1]);
      const { rows, chosen } = opened.current;
      const at = rows.indexOf(chosen);
      if (event.key === "n" && at + 1 < rows.length) open(rows[at + 1]);
      if (event.key === "p" && at > 0) open(rows[at - 1]);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  const question = list.rows[place]?.question_first || fields.question;
  const shared = { fields, question, version, open };
  return html`<section class="rollouts">
    <aside>
      ${choices && html`<${Filters} choices=${choices} fields=${fields} change=${(some) => go({ ...some, problem: undefined, ...none })} />`}
      <p class="note">${list.error || `${shown(list.total)} problems, ${shown(list.lines)} rollouts`}</p>
      <${VirtualList} count=${list.rows.length} height=${62} selected=${place} onEnd=${list.more}
        row=${(k) => html`<${ProblemRow} one=${list.rows[k]} on=${k === place} onOpen=${() => openProblem(list.rows[k])} />`} />
    </aside>
    <main>
      ${fields.problem && html`<h2 class="problem-title">${question}</h2>
        <nav><button class=${fields.over ? "on" : ""} onClick=${() => go({ over: fields.over ? undefined : "steps" })}>
          wherever it is asked</button>
          ${others.map(([one, k]) => html`<button class=${beside === k ? "on" : ""}
            onClick=${() => go({ beside: beside === k ? undefined : k })}>beside ${one.name}</button>`)}
          <span class="note">j k problems · n p rollouts · c colours · / search</span></nav>`}
      ${beside === null ? html`<${Problem} run=${run} names=${["in", "row"]} opened=${opened} ...${shared} />`
        : html`<div class="beside"><div><h3>${runs[run].name}</h3>
            <${Problem} run=${run} names=${["in", "row"]} opened=${opened} ...${shared} /></div>
          <div><h3>${runs[beside].name}</h3>
            <${Problem} key=${beside} run=${beside} names=${["in2", "row2"]} other=${true} ...${shared} /></div></div>`}
    </main>
  </section>`;
}
