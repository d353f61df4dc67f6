// Curves of metrics over training steps, of one run or several.
"use strict";

function Chart({ title, steps, series, marks = [], height = 170 }) {
  const box = useRef(null);
  useEffect(() => {
    const css = getComputedStyle(document.documentElement);
    const [ink, faint] = [css.getPropertyValue("--ink"), css.getPropertyValue("--line")];
    const axis = { stroke: ink, grid: { stroke: faint, width: 1 }, ticks: { stroke: faint }, font: "11px sans-serif" };
    const options = {
      width: box.current.clientWidth || 360, height,
      scales: { x: { time: false } },
      axes: [{ ...axis, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000] }, { ...axis, size: 56, values: (_, some) => some.map((one) => shown(one)) }],
      cursor: { sync: { key: "steps" } },
      legend: { show: series.length > 1 || series.some((one) => one.colour), live: true },
      series: [{ label: "step" }, ...series.map((one, number) => ({
        label: one.label, stroke: one.colour || SERIES[number % SERIES.length], width: 1.6, spanGaps: true,
        dash: one.dashed ? [5, 4] : undefined, value: (_, value) => shown(value),
        points: { show: steps.length < 40, size: 4 },
      }))],
      hooks: { draw: [(plot) => {
        const { ctx, bbox } = plot;
        ctx.save();
        ctx.strokeStyle = faint;
        ctx.fillStyle = ink;
        ctx.font = `${11 * devicePixelRatio}px sans-serif`;
        for (const one of marks) {
          const x = plot.valToPos(one.step, "x", true);
          ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
          ctx.fillText(one.label, x + 4, bbox.top + 12 * devicePixelRatio);
        }
        ctx.restore();
      }] },
    };
    const plot = new Vendor.uPlot(options, [steps, ...series.map((one) => one.values)], box.current);
    const seen = new ResizeObserver(() => plot.setSize({ width: box.current.clientWidth, height }));
    seen.observe(box.current);
    return () => { seen.disconnect(); plot.destroy(); };
  }, [steps, JSON.stringify(series.map((one) => [one.label, one.values.length])), document.documentElement.dataset.theme]);
  return html`<figure class="chart"><figcaption>${title}</figcaption><div ref=${box}></div></figure>`;
}

// Curves whose name differs in the role alone are one picture; `of`: a metric to divide by.
function byRole(series, roles, name, of = null) {
  const values = (role) => {
    const [some, whole] = [series[`role/${role}/${name}`], series[`role/${role}/${of}`]];
    return of && some ? some.map((value, k) => (value === null || !whole?.[k] ? null : value / whole[k])) : some;
  };
  return roles.map((role) => ({ label: role, values: values(role) })).filter((one) => one.values);
}

function MainCurves({ run, version, roles, evaluations }) {
  const { data } = useData(`runs/${run}/metrics`, version);
  if (!data || data.steps.length === 0) return null;
  const { steps, series } = data;
  const panels = [
    ["Reward", byRole(series, roles, "reward_mean")],
    ["Response length, tokens", byRole(series, roles, "response_length_mean")],
    ["Entropy", byRole(series, roles, "entropy")],
    ["Groups with equal rewards, share", byRole(series, roles, "zero_std_groups", "groups")],
    ["Gradient norm", pick(series, "actor/grad_norm")],
    ["Seconds a step", pick(series, "seconds/step", "seconds/rollout", "seconds/update_actor")],
  ].filter(([, some]) => some.length > 0);
  const between = evaluations.filter((one) => one.step > 0 && one.step < steps[steps.length - 1]);
  return html`<h2>While it trained</h2>
    <div class="charts">${panels.map(([title, some]) => html`<${Chart} key=${title} title=${title} steps=${steps}
      series=${some} marks=${between.map((one) => ({ step: one.step, label: "evaluated" }))} />`)}</div>`;
}

function pick(series, ...names) {
  return names.filter((name) => series[name]).map((name) => ({ label: words(name.split("/").pop()), values: series[name] }));
}

// All metrics, by a search in their names; several runs are drawn in one picture, each in its own colour.
function Curves({ runs, chosen, version, fields }) {
  const [found, setFound] = useState({});
  const search = fields.search ?? "reward_mean";
  useEffect(() => {
    let wanted = true;
    Promise.all(chosen.map((run) => Data.get(`runs/${run}/metrics`))).then((all) => {
      if (wanted) setFound(Object.fromEntries(chosen.map((run, k) => [run, all[k]])));
    });
    return () => { wanted = false; };
  }, [chosen.join(), version]);
  const steps = [...new Set(chosen.flatMap((run) => found[run]?.steps || []))].sort((a, b) => a - b);
  const parts = search.toLowerCase().split(/\s+/).filter(Boolean);
  const names = [...new Set(chosen.flatMap((run) => Object.keys(found[run]?.series || {})))].sort()
    .filter((name) => parts.every((part) => name.toLowerCase().includes(part)));
  const aligned = (run, name) => {
    const at = new Map((found[run]?.steps || []).map((step, k) => [step, found[run].series[name]?.[k] ?? null]));
    return steps.map((step) => at.get(step) ?? null);
  };
  return html`<section>
    <div class="bar"><input type="search" placeholder="part of a name" value=${search} aria-label="metrics"
      onInput=${(event) => writeAddress("curves", { ...fields, search: event.target.value }, true)} />
      <span>${names.length} metrics</span></div>
    <div class="charts">${names.slice(0, 60).map((name) => html`<${Chart} key=${name} title=${name} steps=${steps}
      series=${chosen.flatMap((run, k) => (found[run]?.series[name]
        ? [{ label: runs[run].name, values: aligned(run, name), colour: chosen.length > 1 && SERIES[k % SERIES.length] }]
        : []))} />`)}</div>
    ${names.length > 60 && html`<${Message}>The first 60 are drawn.</${Message}>`}
  </section>`;
}
