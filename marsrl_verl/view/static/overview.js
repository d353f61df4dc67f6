// What was trained with what, and what came of it.
"use strict";

function sentence(run) {
  const first = run.changes.find((one) => !one.greedy && one.direction !== 0)
    || run.changes.find((one) => one.before.n && one.after.n);
  const steps = `${run.steps} step${run.steps === 1 ? "" : "s"}`;
  if (!run.ended) return `Not ended: ${steps} of ${shown(run.planned_steps)} so far.`;
  if (!first) return `${steps} in ${duration(run.seconds)}; there is no evaluation before and after to compare.`;
  const [from, to] = [percent(first.before.mean), percent(first.after.mean)];
  const how = first.direction > 0 ? "is better" : first.direction < 0 ? "is worse" : "is not told apart from chance";
  const pass = first.greedy ? " (greedy)" : "";
  return `${first.label}${pass} went from ${from} to ${to} in ${steps} and ${duration(run.seconds)}: it ${how}.`;
}

function Changes({ changes }) {
  if (!changes.length) return null;
  const part = (greedy) => changes.filter((one) => one.greedy === greedy);
  const rows = (some) => some.map((one) => html`<tr>
    <td>${one.label}</td><td>${withInterval(one.before)}</td><td>${withInterval(one.after)}</td>
    <td>${points(one.change)}</td>
    <td class=${one.direction > 0 ? "better" : one.direction < 0 ? "worse" : ""}>
      ${one.direction > 0 ? "better" : one.direction < 0 ? "worse" : ""}</td></tr>`);
  return html`<div class="wide"><table>
    <thead><tr><th>held-out problems</th><th>before</th><th>after</th><th>change, points</th><th></th></tr></thead>
    <tbody>${rows(part(false))}
      ${part(true).length > 0 && html`<tr><th colspan="5">greedy</th></tr>`}${rows(part(true))}</tbody>
  </table></div>`;
}

function Evaluation({ one }) {
  const effort = Object.entries(one.effort).filter(([name]) => ["calls", "tokens"].includes(name));
  return html`<div class="wide"><table>
    <thead><tr><th>${words(one.tag)}, ${one.problems} problems</th><th></th></tr></thead>
    <tbody>${Object.entries(one.estimates).map(([name, value]) => html`<tr>
      <td>${one.labels[name] || words(name)}</td><td>${withInterval(value)}</td></tr>`)}
      ${effort.map(([name, value]) => html`<tr><td>${words(name)} a run</td><td>${shown(value.mean)}</td></tr>`)}
    </tbody></table></div>`;
}

// What each role's rollouts came to in training: a role without reward, or one that tells the answer, is seen here.
function ByRole({ rollouts }) {
  if (!rollouts.length) return null;
  return html`<div class="wide"><table>
    <thead><tr><th>rollouts in training</th><th>number</th><th>reward, mean</th><th>from … to</th><th>trained</th>
      <th>tokens, mean</th><th>has the reference</th></tr></thead>
    <tbody>${rollouts.map((one) => html`<tr><td>${one.role}</td><td>${shown(one.row_count)}</td><td>${shown(one.reward_mean)}</td>
      <td class=${one.reward_count > 1 && one.reward_min === one.reward_max ? "worse" : ""}>${shown(one.reward_min)} … ${shown(one.reward_max)}</td>
      <td>${percent(one.advantage_count / one.row_count)}</td><td>${shown(one.tokens_mean)}</td><td>${percent(one.says_mean)}</td></tr>`)}</tbody>
  </table></div>`;
}

function Overview({ run, version }) {
  const { data, error } = useData(`runs/${run}/overview`, version);
  if (error) return html`<${Message}>${error}</${Message}>`;
  if (!data) return html`<${Message}>Reading…</${Message}>`;
  const alone = data.changes.length ? [] : data.evaluations;
  return html`<section class="overview">
    <h1>${data.name}</h1>
    <p class="result">${sentence(data)}</p>
    ${data.warnings.length > 0 && html`<div class="warnings"><h2>Warnings</h2>
      <ul>${data.warnings.map((one) => html`<li>${one}</li>`)}</ul></div>`}
    <${Changes} changes=${data.changes} />
    ${alone.map((one) => html`<${Evaluation} one=${one} />`)}
    <${MainCurves} run=${run} version=${version} roles=${data.roles} evaluations=${data.evaluations} />
    <${ByRole} rollouts=${data.rollouts} />
    <h2>The run</h2>
    <div class="wide"><table class="facts"><tbody>
      ${Object.entries(data.settings).map(([name, value]) => html`<tr><td>${name}</td>
        <td>${Array.isArray(value) ? value.join(", ") : shown(value)}</td></tr>`)}
      <tr><td>roles</td><td>${data.roles.join(", ")}</td></tr>
      <tr><td>begun</td><td>${data.created}</td></tr>
      <tr><td>folder</td><td>${data.path}</td></tr>
      <tr><td>versions</td><td>${Object.entries(data.versions).map((pair) => pair.join(" ")).join(", ")}</td></tr>
    </tbody></table></div>
    ${data.command.length > 0 && html`<pre class="command">${data.command.join(" ")}</pre>`}
  </section>`;
}
