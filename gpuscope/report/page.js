// Zooms all timelines of a chapter that show the same time together, and prints what is folded.
// The page is whole without it.
// STEPS and TICKS come before this file and are those of the Python that drew the axes.
'use strict';
const SVG = 'http://www.w3.org/2000/svg';
const two = (n) => String(n).padStart(2, '0');

function label(at, step, relative) {
  const whole = Math.floor(at + 1e-6), day = Math.floor(whole / 86400), rest = whole - day * 86400;
  let text = two(Math.floor(rest / 3600)) + ':' + two(Math.floor(rest % 3600 / 60));
  if (step < 60) text += ':' + two(rest % 60);
  if (step < 1) text += '.' + Math.round((at - whole) * 10) % 10;
  if (step >= 86400 && !relative) {
    const date = new Date(day * 86400000);
    return two(date.getUTCDate()) + ' ' +
      date.toLocaleString('en', {month: 'short', timeZone: 'UTC'});
  }
  return relative && day ? day + ' d ' + text : text;
}

function ticks(begin, relative, seconds) {
  const step = STEPS.find((one) => one >= 0.999 * seconds / TICKS) ||
    86400 * Math.ceil(seconds / TICKS / 86400);
  const found = [];
  for (let n = Math.ceil(begin / step - 1e-6); n * step <= begin + seconds + 1e-6; n++)
    found.push([Math.max((n * step - begin) / seconds, 0), label(n * step, step, relative)]);
  return found;
}

function put(parent, name, attributes, text) {
  const made = document.createElementNS(SVG, name);
  for (const key in attributes) made.setAttribute(key, attributes[key]);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

function start(lines) {
  const whole = +lines[0].dataset.seconds;
  const begin = lines[0].dataset.begin, relative = begin === undefined, origin = +(begin || 0);
  let from = 0, to = 1;

  const bar = document.createElement('div');
  bar.className = 'zoom';
  const said = document.createElement('output');
  const acts = {
    '+': () => show(from + (to - from) / 4, to - (to - from) / 4),
    '−': () => show(from - (to - from) / 2, to + (to - from) / 2),
    '←': () => move(-(to - from) / 2),
    '→': () => move((to - from) / 2),
    'All': () => show(0, 1),
  };
  const names = {'+': 'Zoom in', '−': 'Zoom out', '←': 'Earlier', '→': 'Later', 'All': 'All'};
  for (const text in acts) {
    const button = document.createElement('button');
    button.type = 'button';
    button.textContent = text;
    button.setAttribute('aria-label', names[text]);
    button.addEventListener('click', acts[text]);
    bar.append(button);
  }
  bar.append(said);
  lines[0].closest('figure').before(bar);

  const clock = (share) => label(origin + share * whole, whole * (to - from) < 20 ? 0.1 : 1, relative);
  const idle = () => { said.textContent = clock(from) + ' to ' + clock(to) + ' · drag over a chart to zoom'; };
  const move = (by) => {
    const length = to - from, first = Math.min(Math.max(from + by, 0), 1 - length);
    show(first, first + length);
  };

  function show(a, b) {
    const least = 0.01;
    a = Math.max(0, a);
    b = Math.min(1, b);
    if (b - a < least) { const middle = (a + b) / 2; a = middle - least / 2; b = middle + least / 2; }
    from = Math.max(0, Math.min(a, 1 - least));
    to = Math.min(1, Math.max(b, from + least));
    const found = ticks(origin + from * whole, relative, (to - from) * whole);
    for (const line of lines) {
      for (const plot of line.querySelectorAll('.plot')) {
        const buckets = plot.dataset.buckets ||= plot.viewBox.baseVal.width;
        plot.setAttribute('viewBox', `${from * buckets} 0 ${(to - from) * buckets} 100`);
      }
      for (const grid of line.querySelectorAll('.grid')) {
        grid.replaceChildren();
        for (const [at] of found)
          put(grid, 'line', {class: 'tick', x1: 100 * at + '%', x2: 100 * at + '%', y1: 0, y2: '100%'});
      }
      const axis = line.querySelector('.axis');
      axis.replaceChildren();
      for (const [at, text] of found)
        put(axis, 'text', {class: 'tick', x: (100 * at).toFixed(2) + '%', y: 12,
          'text-anchor': at < 0.04 ? 'start' : at > 0.96 ? 'end' : 'middle'}, text);
    }
    idle();
  }

  for (const strip of lines.flatMap((one) => [...one.querySelectorAll('.strip')])) {
    let first = null, mark = null;
    const place = (event) => {
      const box = strip.getBoundingClientRect();
      return Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
    };
    strip.addEventListener('pointerdown', (event) => {
      if (event.button) return;
      first = place(event);
      strip.setPointerCapture(event.pointerId);
      mark = put(strip, 'rect', {class: 'picked', y: 0, height: '100%', x: 0, width: 0});
    });
    strip.addEventListener('pointermove', (event) => {
      const here = place(event);
      said.textContent = clock(from + here * (to - from));
      if (first === null) return;
      mark.setAttribute('x', 100 * Math.min(first, here) + '%');
      mark.setAttribute('width', 100 * Math.abs(here - first) + '%');
    });
    const end = (event, zoom) => {
      if (first === null) return;
      const here = place(event), length = to - from;
      const [a, b] = [Math.min(first, here), Math.max(first, here)];
      first = null;
      mark.remove();
      if (zoom && b - a > 0.01) show(from + a * length, from + b * length);
    };
    strip.addEventListener('pointerup', (event) => end(event, true));
    strip.addEventListener('pointercancel', (event) => end(event, false));
    strip.addEventListener('pointerleave', idle);
    strip.addEventListener('dblclick', () => show(0, 1));
  }
  for (const line of lines) line.classList.add('zoomable');
  show(0, 1);
}

for (const article of document.querySelectorAll('article')) {
  const groups = new Map();
  for (const line of article.querySelectorAll('.timeline')) {
    const span = line.dataset.begin + '/' + line.dataset.seconds;
    if (+line.dataset.seconds > 0) groups.set(span, [...(groups.get(span) || []), line]);
  }
  groups.forEach(start);
}

addEventListener('beforeprint', () => {
  for (const one of document.querySelectorAll('details')) one.open = true;
});
