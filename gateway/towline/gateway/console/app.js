// The console. Promises: every event of the run on screen, once and in order, over lost sockets and reloads; what agents
// and tools wrote is only ever text, of which nothing hides; a decision carries the digest of what is shown.
const $ = (id) => document.getElementById(id), saved = sessionStorage, enc = encodeURIComponent, LINES = 500, HERE = import.meta.url;
const put = (node, ...children) => { node.append(...children); return node; };
const HIDDEN = /[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\u{e0000}-\u{e007f}]/gu;
const visible = (text) => String(text).replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`); // no picture, or turning others: seen
const el = (tag, text = '', props = {}, ...children) => put(Object.assign(document.createElement(tag), { textContent: visible(text), ...props }), ...children);
const fill = (id, items) => { $(id).replaceChildren(...items); $(id).parentElement.hidden = !items.length; };
const randomId = () => crypto.getRandomValues(new Uint32Array(4)).join('.'), clock = (at) => (at ? new Date(at).toLocaleTimeString() : '');
const notice = (text) => { $('notice').textContent = visible(text ?? ''); $('notice').hidden = !text; };
const attempt = (work) => work().catch((error) => notice(error.message)), act = (work) => { notice(); attempt(work); }; // a new act: no old complaint
let me, view, socket, due, tries = 0, retryMs = 0, heardAt = 0, asked = 0, refreshing, starting = {}, decided = {};

async function api(path, { body, key, raw, file } = {}) {
  const headers = { Authorization: `Bearer ${saved.getItem('token')}`, ...(key && { 'Idempotency-Key': key }) };
  const type = file ? file.type || 'application/octet-stream' : 'application/json';
  const post = (file || body) && { method: 'POST', body: file ?? JSON.stringify(body), headers: { ...headers, 'Content-Type': type } };
  const answer = await fetch(new URL(`v1${path}`, HERE), { headers, ...(!file && { signal: AbortSignal.timeout(20000) }), ...post }).catch(() => { throw new Error('No answer. Nothing is lost; try again.'); });
  if (answer.ok) return raw ? answer.blob() : answer.json();
  const problem = await answer.json().catch(() => ({ detail: `The server answered ${answer.status}.` }));
  if (answer.status === 401) signOut(problem.detail); throw new Error(problem.detail);
}

const wrong = (d) => `${d?.error?.type ?? 'error'}: ${d?.error?.message ?? 'reason not shown to you'}`;
const unknown = (d) => (d.abandoned?.length ? `. Effect unknown: ${d.abandoned.map((step) => step.name).join(', ')}` : '');
const WORDS = { 'run.taken_over': (d) => `by ${d.worker} from ${d.from}`, 'run.failed': (d) => `${d.summary}${unknown(d)}`,
  'run.cancelled': (d) => `${d.reason ?? `by ${d.by}`}${unknown(d)}`, 'plan.step': (d) => `${d.id} ${d.status}`,
  'run.waiting': (d) => `for ${d.on?.map((w) => w.name ?? w.kind).join(', ')}`, 'tool.failed': wrong, 'tool.retrying': wrong };
function sentence({ type, data: d, redacted }) {
  const said = d && (WORDS[type]?.(d) ?? d.summary ?? d.title ?? d.text ?? d.headline ?? d.outcome ?? d.name ?? d.type ?? d.worker);
  return `${type.replace(/[._]/g, ' ')}: ${said ?? (redacted ? '(not shown to you)' : JSON.stringify(d))}`.slice(0, 2000);
}
function statusWords(run) {
  const why = run.status_detail?.text ?? run.status_detail?.code, { verified } = run.outcome ?? {};
  if (run.stopping) return `Stopping; ends by ${clock(run.stopping.deadline)} at the latest`;
  if (run.status === 'waiting' && run.waiting_on.some((w) => w.may_answer)) return 'Waiting for your decision';
  if (run.status === 'completed') return { true: 'Completed and verified', false: 'Completed, but NOT verified' }[verified] ?? 'Completed';
  if (run.status === 'failed') return `Failed: ${wrong(run.outcome)}`;
  return run.status[0].toUpperCase() + run.status.slice(1) + (why && run.status !== 'running' ? `: ${why}` : '');
}
const statusClass = (run) => (run.outcome?.verified === false ? 'failed' : run.stopping ? 'waiting' : run.status);

// The socket: hello, then the run on screen from the cursor that is held of it.
const send = (frame) => socket?.readyState === 1 && socket.send(JSON.stringify(frame));
const subscribe = () => view && send({ op: 'subscribe', id: `s${++asked}`, run: view.run, after: view.cursor });
const LOST = 'Connection lost; the run goes on. Reconnecting…', link = (text) => { $('link').textContent = text; };
function connect() {
  const mine = socket = new WebSocket(new URL('v1/socket', HERE.replace(/^http/, 'ws')), 'towline.v1');
  clearTimeout(due); due = setTimeout(() => mine.readyState || mine.close(), 10000); // an attempt that nobody answers ends too
  socket.onopen = () => { heardAt = Date.now(); send({ op: 'hello', token: saved.getItem('token'), client: 'console' }); };
  socket.onmessage = ({ data }) => { if (mine === socket) { heardAt = Date.now(); receive(JSON.parse(data)); } };
  socket.onclose = ({ code, reason }) => {
    if (mine !== socket) return; // it was given up already
    if (code === 4501 || code === 4005) return signOut(reason || 'Your sign-in has ended.');
    link(LOST);
    if (code >= 4500 || [1002, 1003, 1007, 1008, 1009, 1010].includes(code)) return notice(`The server refused the connection (${code}). ${reason}`);
    due = setTimeout(connect, Math.max(retryMs, Math.random() * Math.min(20000, 500 * 2 ** tries++)));
  };
}
function probe() { // after sleep, or back on the network: what was open may only look so, and who waits need not
  const mine = socket, since = Date.now(), replace = () => { mine.close(4001); link(LOST); connect(); };
  if (since - heardAt > 30000) link('Checking the connection…');
  if (mine?.readyState > 1) replace();
  else if (mine?.readyState === 1) { send({ op: 'ping' }); setTimeout(() => mine === socket && heardAt < since && replace(), 2000); }
}
function receive(frame) {
  const { op, code } = frame, isMine = frame.id === `s${asked}`; // not of an earlier subscription
  if (op === 'welcome' || op === 'pong') link('Connected');
  if (op === 'welcome') { tries = retryMs = 0; notice(); subscribe(); }
  if (op === 'bye') retryMs = frame.retry_ms ?? 0; else if (op === 'problem' && isMine) notice(frame.problem.detail);
  if (op === 'heartbeat' && view?.placed === asked && frame.heads?.[view.run] > view.seq) subscribe();
  if (!view || frame.run !== view.run) return;
  if (op === 'subscribed' && isMine) {
    if (frame.recovery === 'reset') view.lines = [{ seq: '!', text: 'The history of this run is another one now. From its start:', bad: true }];
    if (frame.recovery === 'snapshot') view.lines.push({ seq: '…', text: `Events ${(frame.lost ?? frame.skipped).join(' to ')} are not shown.` });
    if (frame.recovery !== 'resumed') view.seq = parseInt(frame.cursor, 10);
    Object.assign(view, { placed: asked, cursor: frame.cursor, drawn: 0 });
    $('log').replaceChildren(); view.lines.forEach(addLine);
    draw(frame.projection);
  }
  if (view.placed !== asked) return;
  for (const event of op === 'events' ? frame.events : []) {
    if (event.seq <= view.seq) continue;
    if (event.seq !== view.seq + 1) return subscribe(); // a hole: again from the cursor we hold
    const line = { seq: event.seq, ts: event.ts, text: sentence(event), bad: /failed|blocked|rejected|retrying/.test(event.type) };
    Object.assign(view, { seq: event.seq, lines: [...view.lines, line].slice(-LINES) });
    addLine(line);
  }
  if (op === 'events' || op === 'end') {
    view.cursor = frame.cursor; saved.setItem('view', JSON.stringify(view)); // cursor and lines together, for reloads
    refreshing ??= setTimeout(refresh, 150);
  }
  if (code === 'shed') setTimeout(subscribe, frame.retry_ms ?? 1000);
  else if (code === 'revoked' || code === 'purged') notice('This run is no longer shown to you.');
}

// What is on screen.
function addLine({ seq, ts, text, bad }) {
  const log = $('log'), follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(el('li', '', { className: bad ? 'bad' : '' }, el('span', seq), el('time', clock(ts)), el('span', text)));
  if (log.children.length > LINES) log.firstChild.remove(); if (follows) log.scrollTop = log.scrollHeight;
}
const refresh = () => { refreshing = undefined; listRuns(); attempt(async () => view && draw(await api(`/runs/${enc(view.run)}`))); };
async function listRuns() {
  const { items = [] } = await api(`/runs?limit=30&owner=${enc(me.subject)}`).catch(() => ({}));
  const link = (run) => ({ href: `#run=${enc(run.id)}`, ariaCurrent: run.id === view?.run ? 'page' : null });
  fill('runs', items.map((run) => el('li', '', {}, el('a', run.headline ?? run.workflow, link(run),
    el('small', `${statusWords(run)}, ${clock(run.updated_at)}`, { className: statusClass(run) })))));
}
function draw(run) {
  if (run.id !== view?.run || run.last_seq < view.drawn) return; // another run by now, or older than what is shown
  const words = statusWords(run), mark = { done: '✓', active: '▸', failed: '✗', skipped: '–' }, title = run.headline ?? run.workflow;
  const facts = `${run.id}: ${run.last_seq} events${run.worker ? `, held by ${run.worker.id}` : ''}`;
  for (const [id, text] of Object.entries({ headline: title, status: words, summary: run.summary ?? '', facts }))
    if ($(id).textContent !== visible(text)) $(id).textContent = visible(text); // what is the same is not said again by screen readers
  document.title = visible(`${words} · ${title}`); $('status').className = statusClass(run);
  $('cancel').hidden = !run.actions.some((action) => action.type === 'cancel');
  fill('plan', (run.plan ?? []).map((p) => el('li', `${mark[p.status] ?? '·'} ${p.title}`, { className: p.status, title: p.status })));
  fill('claims', (run.outcome?.claims ?? []).map(({ text, evidence }) => el('li', text, {}, el('small',
    ` (${evidence.map((e) => e.artifact ?? `event ${e.seq}`).join(', ')})`))));
  const asks = run.waiting_on.filter((w) => w.kind === 'approval'), shown = JSON.stringify(asks), isNew = !view.drawn;
  if (isNew || view.asks !== shown) attempt(async () => $('asks').replaceChildren(...await Promise.all(asks.map((w) => ask(run.id, w)))));
  if (isNew || view.artifacts !== run.artifacts) attempt(() => artifacts(run.id));
  Object.assign(view, { drawn: run.last_seq, artifacts: run.artifacts, asks: shown });
}
async function artifacts(run) {
  const save = async ({ id, name }) => {
    const href = URL.createObjectURL(await api(`/runs/${enc(run)}/artifacts/${enc(id)}`, { raw: true }));
    el('a', '', { href, download: name }).click(); // the blob goes with the page
  };
  const { items } = await api(`/runs/${enc(run)}/artifacts?limit=200`);
  if (run === view?.run) fill('artifacts', items.map((made) => el('li', '', {},
    el('button', made.name, { className: 'quiet', onclick: () => act(() => save(made)) }),
    el('small', `${made.media_type}, ${(made.size / 1024).toFixed(1)} KiB`))));
}
async function ask(run, wait) {
  const request = wait.request?.ref ? (await api(`/runs/${enc(run)}/requests/${enc(wait.id)}`)).request : wait.request;
  if (!request?.proposal) return el('section', 'What is asked is not shown to you.', { className: 'ask' });
  const names = { intent: 'Will do', lineage: 'Derived from', permissions: 'Touches', blast_radius: 'At risk', rollback: 'To undo' };
  const rows = [...Object.entries(request.proposal), ...(request.questions ?? []).map((q) => ['Question', q.text]), ['Digest', request.digest]];
  const button = (type, text, className) => el('button', text, { className, onclick: () => act(async () => {
    const key = (decided[type + wait.id] ??= randomId()); // pressed twice, or again after a lost answer: one decision
    await api(`/runs/${enc(run)}/commands`, { key, body: { type, data: { request: wait.id, digest: request.digest } } });
    refresh();
  }) });
  const list = rows.flatMap(([name, value]) => [el('dt', names[name] ?? name), el('dd', [value].flat().join('\n'))]);
  const choice = wait.may_answer ? [button('approve', 'Approve', ''), button('reject', 'Reject', 'quiet')] : [el('p', 'Somebody else decides this.')];
  return el('section', '', { className: 'ask' }, el('h3', wait.title), el('dl', '', {}, ...list), ...choice);
}

// Which run, and who.
function pick(event) {
  const parts = new URLSearchParams(location.hash.slice(1)), run = parts.get('run'), kept = JSON.parse(saved.getItem('view') ?? 'null');
  if (parts.has('token')) { // once, and out of the address: it must not be shared, nor stay in the history
    saved.setItem('token', parts.get('token')); parts.delete('token');
    history.replaceState(null, '', `${location.pathname}#${parts}`);
    if (event) location.reload(); // perhaps somebody else
  }
  if (view?.run !== run) {
    if (view) send({ op: 'unsubscribe', id: 'u', run: view.run });
    view = !run ? undefined : kept?.run === run ? { ...kept, drawn: 0, placed: 0 } : { run, cursor: '0', seq: 0, lines: [], drawn: 0 };
    for (const id of ['headline', 'status', 'summary', 'facts', 'asks', 'log', 'plan', 'claims', 'artifacts']) $(id).replaceChildren();
    subscribe();
  }
  [$('run').hidden, $('empty').hidden] = [!view, Boolean(view)]; if (me) listRuns();
}
const signOut = (why = '') => { saved.clear(); saved.setItem('why', why); location.reload(); };
async function signIn() {
  me = await api('/whoami'); $('desk').hidden = $('sign-out').hidden = false; pick(); connect();
  let tick = Date.now();
  setInterval(() => {
    const was = tick, quiet = (tick = Date.now()) - heardAt;
    if (quiet > 55000 || tick - was > 15000) probe(); // two heartbeats are missing, or the clock jumped: it slept
    if (!document.hidden) listRuns();
  }, 5000);
  for (const back of ['online', 'pageshow', 'resume', 'visibilitychange']) addEventListener(back, probe, true);
}
$('sign-in').onsubmit = (event) => { event.preventDefault(); saved.setItem('token', $('token').value.trim()); location.reload(); };
$('start').onsubmit = (event) => {
  event.preventDefault();
  const path = $('path').value.trim(), [file] = $('file').files, chosen = file ? [file.name, file.size, file.lastModified].join() : path;
  if (!chosen) return notice('Name a folder, or choose an archive.');
  const headline = `Review of ${file?.name ?? path.split('/').filter(Boolean).pop() ?? '/'}`.slice(0, 80);
  if (starting.chosen !== chosen) starting = { chosen, key: randomId() }; // when its answer was lost, the same start
  act(async () => {
    const source = file ? { upload: (starting.ref ??= (await api('/uploads', { file })).ref) } : { path };
    const run = await api('/runs', { key: starting.key, body: { workflow: 'review', input: { source }, headline } });
    [starting, $('file').value] = [{}, ''];
    location.hash = `run=${enc(run.id)}`;
  });
};
$('cancel').onclick = () => confirm('Cancel this run? It gets half a minute to clean up.')
  && act(async () => draw(await api(`/runs/${enc(view.run)}/cancel`, { body: {} })));
$('sign-out').onclick = () => signOut(); addEventListener('hashchange', pick); pick();
if (saved.getItem('token')) attempt(signIn); else { $('sign-in').hidden = false; notice(saved.getItem('why')); }
