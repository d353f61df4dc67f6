// The trajectories of one problem: stages with their groups, or a tree where some left or continue others.
"use strict";

const identity = (one) => `${one.file}|${one.row}`;

// A trajectory with its ancestors and descendants; null where it has none, so that nothing is pale.
function lineage(rows, chosen) {
  if (!chosen) return null;
  const before = (one) => one.fork || one.parent;
  const by = new Map(rows.map((one) => [one.trajectory, one]));
  const kin = new Set([chosen.trajectory]);
  for (let at = by.get(before(chosen)); at && !kin.has(at.trajectory); at = by.get(before(at))) kin.add(at.trajectory);
  const below = new Set([chosen.trajectory]);
  for (let grown = true; grown;) {
    grown = false;
    for (const one of rows) {
      if (below.has(before(one)) && !below.has(one.trajectory)) { below.add(one.trajectory); grown = true; }
    }
  }
  const all = new Set([...kin, ...below]);
  return all.size > 1 ? all : null;
}

function Cell({ one, chosen, kin, onOpen }) {
  const dim = kin && !kin.has(one.trajectory);
  const state = `${one.trajectory === chosen?.trajectory ? " on" : ""}${dim ? " dim" : ""}`;
  const trained = one.advantage === null ? "" : " trained";
  return html`<button class=${`cell${state}${trained}`} style=${{ background: rewardColour(one.reward) }}
    aria-label=${`${one.role}, reward ${shown(one.reward)}`} onClick=${() => onOpen(one)}
    title=${`${one.trajectory}\nreward ${shown(one.reward)}, ${one.finish_reason}, ${shown(one.tokens)} tokens` +
      (one.advantage === null ? "\nnot trained" : `\nadvantage ${shown(one.advantage)}`)}>
    ${one.finish_reason === "stop" ? "" : one.finish_reason === "length" ? "…" : "!"}</button>`;
}

function Stages({ rows, chosen, onOpen }) {
  const kin = lineage(rows, chosen);
  const stages = new Map();
  for (const one of rows) {
    if (one.sequence > 0) continue;
    if (!stages.has(one.stage)) stages.set(one.stage, new Map());
    const groups = stages.get(one.stage);
    if (!groups.has(one.group)) groups.set(one.group, []);
    groups.get(one.group).push(one);
  }
  return html`<div class="stages">${[...stages].map(([stage, groups]) => html`<div class="stage">
    <h4>${words(stage)}</h4>
    ${[...groups].map(([group, some]) => {
      const rewards = some.map((one) => one.reward).filter((value) => value !== null);
      return html`<div class="group"><small title=${group}>mean reward ${shown(mean(rewards))} · step ${some[0].step}</small>
        <div>${some.map((one) => html`<${Cell} one=${one} chosen=${chosen} kin=${kin} onOpen=${onOpen} />`)}</div></div>`;
    })}</div>`)}</div>`;
}

const mean = (values) => (values.length ? values.reduce((a, b) => a + b, 0) / values.length : null);

// Trajectories along their tokens, each under the one that it left or continues, from that token on.
function Tree({ rows, chosen, onOpen }) {
  const firsts = rows.filter((one) => one.sequence === 0);
  const known = new Set(firsts.map((one) => one.trajectory));
  const before = (one) => {
    const name = one.fork || one.parent;
    return known.has(name) && name !== one.trajectory ? name : "";
  };
  const children = new Map();
  for (const one of firsts) children.set(before(one), [...(children.get(before(one)) || []), one]);
  // What leaves last is drawn first, so that no line crosses a bar.
  for (const some of children.values()) some.sort((a, b) => (b.left_at ?? 1e9) - (a.left_at ?? 1e9));
  const nodes = [];
  Vendor.hierarchy({ trajectory: "" }, (one) => children.get(one.trajectory)).eachBefore((node) => {
    if (node.depth === 0) return;
    const above = node.parent.depth ? node.parent : null;
    const shared = above !== null && node.data.left_at !== null;
    node.origin = above === null ? 0 : shared ? above.origin : above.last + 2;
    node.first = node.origin + (shared ? node.data.left_at : 0);
    node.last = Math.max(node.origin + (node.data.tokens || 0), node.first);
    node.row = nodes.push(node) - 1;
  });
  const kin = lineage(rows, chosen);
  const high = nodes.length > 60 ? 12 : 18;
  const most = Math.max(...nodes.map((one) => one.last), 1);
  const across = (tokens) => `${(4 + 85 * tokens / most).toFixed(3)}%`;
  const wide = (tokens) => `${(85 * tokens / most).toFixed(3)}%`;
  const down = (node) => node.row * high + high / 2 + 2;
  const parts = nodes.flatMap((one) => one.data.advantages || []).map(([, value]) => Math.abs(value));
  const largest = Math.max(...parts, 1e-9);
  // Places where others leave: the last of them ends the line, the first has what they are worth on average.
  const places = new Map();
  for (const node of nodes) {
    if (!node.parent.depth) continue;
    const name = `${node.parent.row}|${node.first}`;
    places.set(name, [...(places.get(name) || []), node]);
  }
  const dim = (node) => (kin && !kin.has(node.data.trajectory) ? "dim" : "");
  const told = ({ data: one }) => `${one.trajectory}\nreward ${shown(one.reward)}, ${one.finish_reason}, ${shown(one.tokens)} tokens`
    + (one.advantages ? one.advantages.map(([end, value]) => `\nadvantage ${shown(value)} up to token ${end}`).join("") : "\nnot trained");
  return html`<${Fragment}><p class="note">bars: responses along their tokens${parts.length > 0 && html`, by advantage
      <i style=${{ background: diverging(-1, 1) }}></i>−${shown(largest)} to <i style=${{ background: diverging(1, 1) }}></i>+${shown(largest)}`};
      ${places.size > 0 && " number at a branch: mean reward of what continues there;"} circles: rewards</p>
    <div class="tree"><svg width="100%" height=${nodes.length * high + 18} role="img" aria-label="tree of trajectories">
    ${[...places.values()].map((some) => {
      const rewards = some.map((one) => one.data.reward).filter((value) => value !== null);
      const x = across(some[0].first);
      return html`<g class=${`branch ${some.every(dim) ? "dim" : ""}`}>
        <line x1=${x} x2=${x} y1=${down(some[0].parent)} y2=${down(some[some.length - 1])} />
        ${rewards.length > 0 && html`<text x=${x} dx="-5" y=${down(some[0]) + 4} text-anchor="end">${shown(mean(rewards), 2)}</text>`}
        <title>${`${some.length} from token ${some[0].first - some[0].origin}: mean reward ${shown(mean(rewards))}`}</title></g>`;
    })}
    ${nodes.map((node) => {
      const { data: one } = node;
      const y = down(node);
      const state = `${one.trajectory === chosen?.trajectory ? "on" : ""} ${one.advantage === null ? "" : "trained"}`;
      let from = node.first;
      const drawn = (one.advantages || []).map(([end, value]) => {
        const [begin, stop] = [from, Math.max(node.origin + end, from)];
        from = stop;
        return stop > begin && html`<rect x=${across(begin)} width=${wide(stop - begin)} y=${y - 5} height="10"
          style=${{ fill: diverging(value, largest) }} />`;
      });
      return html`<g class=${`node ${dim(node)} ${state}`} onClick=${() => onOpen(one)}>
        <rect class="bar" x=${across(node.first)} width=${wide(Math.max(node.last - node.first, 0.5))} y=${y - 5} height="10" />
        ${drawn}
        <circle cx=${across(node.last)} cy=${y} r="6" transform="translate(9 0)" style=${{ fill: rewardColour(one.reward) }} />
        ${one.reward !== null && one.reward !== 0 && one.reward !== 1 && html`<text x=${across(node.last)} dx="19" y=${y + 4}>${shown(one.reward, 2)}</text>`}
        <title>${told(node)}</title></g>`;
    })}
    <text x=${across(most)} y=${nodes.length * high + 14} text-anchor="end">${shown(most)} tokens</text>
    </svg></div></${Fragment}>`;
}

function Structure({ rows, chosen, onOpen }) {
  const branches = rows.some((one) => one.left_at !== null);
  const [shape, setShape] = useState(null);
  const used = shape || (branches ? "tree" : "stages");
  return html`<div class="structure">
    <nav>${["stages", "tree"].map((name) => html`<button class=${used === name ? "on" : ""}
      onClick=${() => setShape(name)}>${name}</button>`)}
      <span class="key"><i style="background:#0072b2"></i>reward 1 <i style="background:#b8a000"></i>between
        <i style="background:#d55e00"></i>0 <i style="background:var(--none)"></i>none · framed: trained</span></nav>
    ${used === "tree" ? html`<${Tree} rows=${rows} chosen=${chosen} onOpen=${onOpen} />`
      : html`<${Stages} rows=${rows} chosen=${chosen} onOpen=${onOpen} />`}
  </div>`;
}
