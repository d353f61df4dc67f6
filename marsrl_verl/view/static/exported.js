// Answers of a page that was exported: what the server would have said of the rollouts that it holds.
"use strict";

function exportedAnswer(data, path) {
  const [place, text] = path.split("?");
  const wanted = Object.fromEntries(new URLSearchParams(text || ""));
  if (place === "runs") return data.runs.map((one) => one.about);
  const [, number, what] = place.split("/");
  const run = data.runs[Number(number)];
  if (what === "line") return run.lines[`${wanted.file}|${wanted.row}`];
  if (what === "problems") return page(byProblem(chosenRows(run.rows, wanted)), wanted);
  if (what === "lines") return page(chosenRows(run.rows, wanted).map((row) => ({ row })), wanted, (one) => one.row);
  return run[what];
}

function page(all, wanted, shownAs = (one) => one) {
  const [offset, limit] = [Number(wanted.offset || 0), Number(wanted.limit || 200)];
  const lines = all.reduce((sum, one) => sum + (one.row_count ?? 1), 0);
  return { total: all.length, lines, rows: all.slice(offset, offset + limit).map(shownAs) };
}

function chosenRows(rows, wanted) {
  const equal = { file: "file", role: "role", stage: "stage", finish: "finish_reason", problem: "problem", question: "question" };
  const text = (wanted.text || "").toLowerCase();
  return rows.filter((one) =>
    Object.entries(equal).every(([name, column]) => !wanted[name] || one[column] === wanted[name])
    && (!wanted.low || one.reward >= Number(wanted.low)) && (!wanted.high || one.reward <= Number(wanted.high))
    && (!wanted.first || one.step >= Number(wanted.first)) && (!wanted.last || one.step <= Number(wanted.last))
    && (!wanted.trained || (one.advantage !== null) === (wanted.trained === "true"))
    && (!wanted.reference || (one.says_reference !== null && one.says_reference === (wanted.reference === "true")))
    && (!text || one.text.toLowerCase().includes(text)));
}

function byProblem(rows) {
  const found = new Map();
  for (const one of rows) {
    const name = `${one.file}|${one.problem}`;
    if (!found.has(name)) found.set(name, []);
    found.get(name).push(one);
  }
  return [...found.values()].map((some) => {
    const rewards = some.map((one) => one.reward).filter((value) => value !== null);
    return {
      file: some[0].file, problem: some[0].problem, question_first: some[0].question, row_count: some.length,
      reward_mean: rewards.length ? rewards.reduce((a, b) => a + b, 0) / rewards.length : null,
      advantage_count: some.filter((one) => one.advantage !== null).length,
    };
  });
}
