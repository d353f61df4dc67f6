// Data, addresses and small parts that all views use. Text of models reaches the page as text nodes alone.
"use strict";
const { html, render, Fragment, useEffect, useMemo, useRef, useState } = Vendor;

// --- data: from the server, or from the page itself where it was exported ------------------------

const Data = {
  exported: JSON.parse(document.getElementById("data")?.textContent || "null"),
  cache: new Map(),

  async get(path, { fresh = false } = {}) {
    if (this.exported) return exportedAnswer(this.exported, path);
    if (!fresh && this.cache.has(path)) return this.cache.get(path);
    const answer = fetch("api/" + path).then(async (got) => {
      if (!got.ok) throw new Error((await got.json()).detail || got.statusText);
      return got.json();
    });
    this.cache.set(path, answer);
    answer.catch(() => this.cache.delete(path));
    return answer;
  },

  forget(run) {
    for (const path of this.cache.keys()) if (path.startsWith(`runs/${run}/`)) this.cache.delete(path);
  },
};

function query(path, fields) {
  const given = Object.entries(fields).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const words = given.map(([name, value]) => `${name}=${encodeURIComponent(value)}`);
  return words.length ? `${path}?${words.join("&")}` : path;
}

// The answer to `path`; while it is awaited the last one stays. `version` changes: it is asked for anew.
function useData(path, version = 0) {
  const [found, setFound] = useState({ data: null, error: null, path: null });
  useEffect(() => {
    let wanted = true;
    if (path === null) return undefined;
    Data.get(path).then(
      (data) => wanted && setFound({ data, error: null, path }),
      (error) => wanted && setFound({ data: null, error: String(error.message || error), path }),
    );
    return () => { wanted = false; };
  }, [path, version]);
  return found;
}

// --- the address: #view?name=value, so that a link leads back here -------------------------------

function readAddress() {
  const [view, words] = location.hash.replace(/^#/, "").split("?");
  return { view: view || "overview", fields: Object.fromEntries(new URLSearchParams(words || "")) };
}

function writeAddress(view, fields, replace = false) {
  const address = query(`#${view}`, fields);
  if (address === location.hash) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

function useAddress() {
  const [address, setAddress] = useState(readAddress());
  useEffect(() => {
    const read = () => setAddress(readAddress());
    addEventListener("hashchange", read);
    addEventListener("popstate", read);
    return () => { removeEventListener("hashchange", read); removeEventListener("popstate", read); };
  }, []);
  return address;
}

// --- numbers ---------------------------------------------------------------------------------------

function shown(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(2);
  return String(Number(value.toPrecision(digits)));
}

const percent = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(1)} %`);

function withInterval(one) {
  if (!one || one.mean === null) return "–";
  return `${percent(one.mean)} [${(100 * one.low).toFixed(1)}, ${(100 * one.high).toFixed(1)}]`;
}

function points(one) {
  if (!one || one.mean === null) return "–";
  const signed = (value) => (value >= 0 ? "+" : "") + (100 * value).toFixed(1);
  return `${signed(one.mean)} [${signed(one.low)}, ${signed(one.high)}]`;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 100) return `${seconds.toFixed(0)} s`;
  if (seconds < 6000) return `${(seconds / 60).toFixed(0)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

const words = (name) => name.replace(/_/g, " ");

// --- colours: told apart by everybody, on light and dark ground -----------------------------------

const SERIES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f"];

// From orange (negative) over the ground to blue (positive).
function diverging(value, most) {
  if (Math.abs(value) < 1e-3 * most) return "transparent";
  const share = Math.min(Math.abs(value) / (most || 1), 1);
  const [red, green, blue] = value < 0 ? [213, 94, 0] : [0, 114, 178];
  return `rgba(${red}, ${green}, ${blue}, ${(0.08 + 0.62 * share).toFixed(3)})`;
}

// From the ground to purple.
function sequential(value, low, high) {
  const share = high > low ? Math.min(Math.max((value - low) / (high - low), 0), 1) : 0;
  return `rgba(136, 34, 136, ${(0.04 + 0.66 * share).toFixed(3)})`;
}

function rewardColour(value) {
  if (value === null || value === undefined) return "var(--none)";
  if (value >= 0.999) return "#0072b2";
  if (value <= 0.001) return "#d55e00";
  return "#b8a000";
}

// --- a list of which the visible part alone is drawn -----------------------------------------------

function VirtualList({ count, height, row, onEnd, selected }) {
  const box = useRef(null);
  const [, redraw] = useState(0);
  const virtual = useRef(null);
  const options = {
    count, getScrollElement: () => box.current, estimateSize: () => height, overscan: 12,
    scrollToFn: Vendor.elementScroll, observeElementRect: Vendor.observeElementRect,
    observeElementOffset: Vendor.observeElementOffset, onChange: () => redraw((n) => n + 1),
  };
  if (virtual.current === null) virtual.current = new Vendor.Virtualizer(options);
  virtual.current.setOptions(options);
  useEffect(() => virtual.current._didMount(), []);
  useEffect(() => { virtual.current._willUpdate(); });
  useEffect(() => { if (selected >= 0) virtual.current.scrollToIndex(selected, { align: "auto" }); }, [selected]);
  const items = virtual.current.getVirtualItems();
  const last = items.length ? items[items.length - 1].index : 0;
  useEffect(() => { if (onEnd && last >= count - 20) onEnd(); }, [last, count]);
  return html`<div class="list" ref=${box} tabindex="0">
    <div style=${{ height: `${virtual.current.getTotalSize()}px`, position: "relative" }}>
      ${items.map((item) => html`<div key=${item.key} class="item"
        style=${{ transform: `translateY(${item.start}px)`, height: `${height}px` }}>${row(item.index)}</div>`)}
    </div>
  </div>`;
}

const Message = ({ children }) => html`<p class="message">${children}</p>`;
