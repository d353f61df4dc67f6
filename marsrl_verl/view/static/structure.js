// The trajectories of one problem as its method has them: stages with their groups, or a tree.
"use strict";

const identity = (one) => `${one.file}|${one.row}`;

// Ancestors and descendants of a trajectory.
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
  return new Set([...kin, ...below]);
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
      const mean = rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null;
      return html`<div class="group"><small title=${group}>mean reward ${shown(mean)} · step ${some[0].step}</small>
        <div>${some.map((one) => html`<${Cell} one=${one} chosen=${chosen} kin=${kin} onOpen=${onOpen} />`)}</div></div>`;
    })}</div>`)}</div>`;
}

// Trajectories under those that they left or continue.
function Tree({ rows, chosen, onOpen }) {
  const firsts = rows.filter((one) => one.sequence === 0);
  const known = new Set(firsts.map((one) => one.trajectory));
  const under = (one) => {
    const before = one.fork || one.parent;
    return known.has(before) && before !== one.trajectory ? before : "";
  };
  const children = new Map();
  for (const one of firsts) children.set(under(one), [...(children.get(under(one)) || []), one]);
  const kin = lineage(rows, chosen);
  const root = Vendor.hierarchy({ trajectory: "" }, (one) => children.get(one.trajectory));
  const [across, down] = [26, 92];
  Vendor.tree().nodeSize([across, down])(root);
  const nodes = root.descendants();
  const low = Math.min(...nodes.map((one) => one.x));
  const [width, height] = [root.height * down + 40, Math.max(...nodes.map((one) => one.x)) - low + 30];
  const place = (one) => [one.y + 14, one.x - low + 14];
  return html`<div class="tree"><svg width=${width} height=${height} role="img" aria-label="tree of trajectories">
    ${root.links().map(({ source, target }) => {
      const [[a, b], [c, d]] = [place(source), place(target)];
      const dim = kin && !(kin.has(target.data.trajectory) && (source.depth === 0 || kin.has(source.data.trajectory)));
      return html`<path class=${dim ? "dim" : ""} d=${`M${a},${b}C${(a + c) / 2},${b} ${(a + c) / 2},${d} ${c},${d}`} />`;
    })}
    ${nodes.map((node) => {
      const [x, y] = place(node);
      const one = node.data;
      if (node.depth === 0) return html`<circle cx=${x} cy=${y} r="5" class="root" />`;
      const state = `${one.trajectory === chosen?.trajectory ? "on" : ""}${kin && !kin.has(one.trajectory) ? " dim" : ""}`;
      return html`<circle cx=${x} cy=${y} r="9" class=${`${state}${one.advantage === null ? "" : " trained"}`}
        style=${{ fill: rewardColour(one.reward) }} onClick=${() => onOpen(one)}>
        <title>${`${one.trajectory}\nreward ${shown(one.reward)}, ${shown(one.tokens)} tokens, advantage ${shown(one.advantage)}`}</title>
      </circle>`;
    })}</svg></div>`;
}

function Structure({ rows, chosen, onOpen }) {
  const branches = rows.some((one) => one.fork) || rows.some((one) => one.parent && one.parent.startsWith(one.group.split("/")[0])
    && rows.find((other) => other.trajectory === one.parent)?.role === one.role);
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
