import { h, render, Fragment } from "preact";
import { useEffect, useMemo, useRef, useState, useCallback } from "preact/hooks";
import htm from "htm";
import uPlot from "uplot";
import { hierarchy, tree } from "d3-hierarchy";
import { Virtualizer, elementScroll, observeElementOffset, observeElementRect } from "@tanstack/virtual-core";
globalThis.Vendor = { h, html: htm.bind(h), render, Fragment, useEffect, useMemo, useRef, useState, useCallback,
  uPlot, hierarchy, tree, Virtualizer, elementScroll, observeElementOffset, observeElementRect };
