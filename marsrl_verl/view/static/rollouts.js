// Problems, their trajectories, and one trajectory's tokens.
"use strict";

const PAGE = 200;
const FILTERS = ["file", "role", "stage", "finish", "text", "low", "high", "first", "last", "trained"];

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
  const number = (name, label) => html`<${Field} type="number" step="any" placeholder=${label} aria-label=${label}
    data-filter=${name} value=${fields[name] || ""} commit=${(said) => change({ [name]: said })} />`;
  return html`<div class="filters">
    <${Field} type="search" id="search" placeholder="text in prompt or response (/)" value=${fields.text || ""}
      data-filter="text" commit=${(said) => change({ text: said })} />
    ${select("file", "file", choices.file)}${select("role", "role", choices.role)}
    ${select("stage", "stage", choices.stage)}${select("finish", "end", choices.finish_reason)}
    <label>trained <select value=${fields.trained || ""} data-filter="trained"
      onChange=${(event) => change({ trained: event.target.value })}><option value="">all</option>
      <option value="true">yes</option><option value="false">no</option></select></label>
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

function Rollouts({ run, version, fields }) {
  const wanted = Object.fromEntries(FILTERS.map((name) => [name, fields[name]]));
  const { data: choices } = useData(`runs/${run}/choices`, version);
  const list = usePages(query(`runs/${run}/problems`, wanted), version);
  // What is changed is the address as it is now: what was drawn last may be of an earlier one.
  const go = (changed, replace = false) => {
    const now = readAddress();
    if (now.view === "rollouts") writeAddress("rollouts", { ...now.fields, ...changed }, replace);
  };
  const place = list.rows.findIndex((one) => one.problem === fields.problem && one.file === fields.of);
  const everywhere = fields.over === "steps";
  const { data: found } = useData(fields.problem ? query(`runs/${run}/lines`, {
    problem: everywhere ? undefined : fields.problem, question: everywhere ? fields.question : undefined,
    file: everywhere || !fields.of?.startsWith("eval") ? undefined : fields.of, limit: 2000,
  }) : null, version);
  const rows = found ? found.rows : [];
  const chosen = rows.find((one) => one.file === fields.in && String(one.row) === fields.row) || null;
  const open = (one) => go({ in: one.file, row: one.row });
  const openProblem = (one) => go({ problem: one.problem, of: one.file, question: one.question_first, in: undefined, row: undefined });
  useEffect(() => { if (rows.length && !chosen) go({ in: rows[0].file, row: rows[0].row }, true); }, [found]);
  useEffect(() => {
    if (list.rows.length && !readAddress().fields.problem) openProblem(list.rows[0]);
  }, [list.path, list.rows.length]);
  useEffect(() => {
    const press = (event) => {
      if (event.key === "/" && !typing(event)) { event.preventDefault(); document.getElementById("search").focus(); }
      if (typing(event)) return;
      if (event.key === "j" && place + 1 < list.rows.length) openProblem(list.rows[place + 1]);
      if (event.key === "k" && place > 0) openProblem(list.rows[place - 1]);
      const at = rows.indexOf(chosen);
      if (event.key === "n" && at + 1 < rows.length) open(rows[at + 1]);
      if (event.key === "p" && at > 0) open(rows[at - 1]);
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  });
  return html`<section class="rollouts">
    <aside>
      ${choices && html`<${Filters} choices=${choices} fields=${fields} change=${(some) => go({ ...some, problem: undefined, in: undefined, row: undefined })} />`}
      <p class="note">${list.error || `${shown(list.total)} problems, ${shown(list.lines)} rollouts`}</p>
      <${VirtualList} count=${list.rows.length} height=${62} selected=${place} onEnd=${list.more}
        row=${(k) => html`<${ProblemRow} one=${list.rows[k]} on=${k === place} onOpen=${() => openProblem(list.rows[k])} />`} />
    </aside>
    <main>
      ${rows.length > 0 && html`<h2 class="problem-title">${rows[0].question}</h2>
        <nav><button class=${everywhere ? "on" : ""} onClick=${() => go({ over: everywhere ? undefined : "steps" })}>
          wherever it is asked</button><span class="note">j k problems · n p rollouts · c colours · / search</span></nav>
        <${Structure} rows=${rows} chosen=${chosen} onOpen=${open} />`}
      ${chosen && html`<${Detail} run=${run} file=${chosen.file} row=${chosen.row} rows=${rows} onOpen=${open} />`}
    </main>
  </section>`;
}
