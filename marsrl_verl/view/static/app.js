// The frame: runs, views, live update.
"use strict";

const POLL_MS = 2000;

function App() {
  const { view, fields } = useAddress();
  const { data: runs, error } = useData("runs");
  const [version, setVersion] = useState(0);
  const [dark, setDark] = useState(document.documentElement.dataset.theme === "dark");
  const run = Math.min(Number(fields.run) || 0, runs ? runs.length - 1 : 0);
  const chosen = fields.runs ? fields.runs.split(",").map(Number) : runs ? runs.map((_, k) => k) : [];
  useEffect(() => {
    document.documentElement.dataset.theme = dark ? "dark" : "light";
  }, [dark]);
  useEffect(() => {
    if (Data.exported || !runs) return undefined;
    let last = null;
    const look = async () => {
      try {
        const states = await Promise.all(runs.map((_, k) => Data.get(`runs/${k}/state`, { fresh: true })));
        const now = states.join("|");
        if (last !== null && now !== last) { runs.forEach((_, k) => Data.forget(k)); setVersion((n) => n + 1); }
        last = now;
        document.body.classList.remove("gone");
      } catch { document.body.classList.add("gone"); }
    };
    const timer = setInterval(look, POLL_MS);
    look();
    return () => clearInterval(timer);
  }, [runs]);
  useEffect(() => {
    const press = (event) => { if (event.key === "d" && !typing(event)) setDark((now) => !now); };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
  if (error) return html`<${Message}>${error}</${Message}>`;
  if (!runs) return html`<${Message}>Reading…</${Message}>`;
  const kept = { run: fields.run, runs: fields.runs };
  return html`<${Fragment}>
    <header class="top">
      <b>marsrl-verl</b>
      <nav>${["overview", "curves", "rollouts"].map((name) => html`<button class=${view === name ? "on" : ""}
        onClick=${() => writeAddress(name, kept)}>${name}</button>`)}</nav>
      ${runs.length > 1 && html`<select aria-label="run" value=${String(run)}
        onChange=${(event) => writeAddress(view, { run: event.target.value, runs: fields.runs })}>
        ${runs.map((one, k) => html`<option value=${String(k)}>${one.name}</option>`)}</select>`}
      <span class="gone-note">the server does not answer</span>
      <button class="theme" aria-label="dark or light" onClick=${() => setDark(!dark)}>${dark ? "light" : "dark"}</button>
    </header>
    ${view === "curves" ? html`<${Curves} runs=${runs} chosen=${chosen} version=${version} fields=${fields} />`
      : view === "rollouts" ? html`<${Rollouts} key=${run} run=${run} runs=${runs} version=${version} fields=${fields} />`
        : html`<${Overview} key=${run} run=${run} version=${version} />`}
  </${Fragment}>`;
}

document.documentElement.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
render(html`<${App} />`, document.getElementById("page"));
