// A worker with nothing but fetch. Kill it anywhere and start it again: what the history has is not done again.
//   TOWLINE_URL=http://127.0.0.1:8787 TOWLINE_TOKEN=$(towline token --data .towline --role worker) node worker.mjs
const { TOWLINE_URL, TOWLINE_TOKEN, TOWLINE_QUEUE = 'default', TOWLINE_WORKER = `node:${process.pid}` } = process.env;
let lease = null;
async function call(method, path, body) { // what may heal is sent again as it was: every call may be repeated
  const headers = { Authorization: `Bearer ${TOWLINE_TOKEN}`, ...(lease && { 'Towline-Lease': lease.token }) };
  headers['Content-Type'] = typeof body === 'string' ? 'text/markdown' : 'application/json';
  const sent = typeof body === 'object' ? JSON.stringify(body) : body;
  for (let tries = 0; ; tries++) {
    const answer = await fetch(`${TOWLINE_URL}/v1${path}`, { method, headers, body: sent }).catch(() => null);
    if (answer?.ok) return answer.status === 204 ? null : answer.json();
    if (answer && answer.status < 500) throw new Error(await answer.text());
    await new Promise((wake) => setTimeout(wake, Math.random() * Math.min(5000, 100 * 2 ** tries)));
  }
}
async function work(at, topic) {
  const log = [];
  let [seen, commit, page] = ['0', 0, null];
  const read = async (what) => { page = await call('GET', `${at}/${what}`); log.push(...page.events); seen = page.cursor; };
  do await read(`history?after=${seen}`); while (page.events.length);
  const all = (...types) => log.filter((event) => types.includes(event.type));
  const append = (...events) => call('POST', `${at}/events`, { commit: ++commit, seen, events });
  const once = async (type, data) => all(type).length || append({ type, data });
  const titles = ['Write the essay', 'Ask', 'Hand it in'].map((title, n) => ({ id: `${n + 1}`, title }));
  await once('plan.proposed', { items: titles });
  let essay = all('tool.finished')[0]?.private;
  if (!essay) { // a step may run more than once; it is recorded once
    const step = { step: 'write', attempt: all('tool.started').length + 1 };
    await append({ type: 'tool.started', data: { ...step, name: 'write', title: titles[0].title, effect: 'none' } });
    const words = `A short essay about ${topic}. It has few words.`.split(/(?<= )/);
    let offset = 0; // counted in code points
    for (const text of words) {
      await call('POST', `${at}/deltas`, { ...step, message: 'essay', offset, text });
      offset += [...text].length;
    }
    essay = words.join('');
    await append({ type: 'message.completed', data: { ...step, message: 'essay', text: essay } },
      { type: 'tool.finished', data: { ...step, summary: 'Written', duration_ms: 0 }, private: essay });
  }
  const proposal = { intent: `Hand in: ${essay}`, lineage: ['write'], permissions: ['artifacts'],
    blast_radius: 'One artifact of this run', rollback: 'It cannot be undone' };
  await once('approval.requested', { request: 'hand-in', title: 'Hand it in?', proposal });
  while (!all('approval.resolved', 'cancel.requested').length) await read(`inputs?after=${seen}&wait_ms=20000`);
  if (all('cancel.requested').length) return append({ type: 'run.cancelled', data: {} });
  const end = (data) => append({ type: 'run.completed', data });
  if (all('approval.resolved')[0].data.outcome !== 'approved') return end({ summary: 'It was not wanted' });
  await call('PUT', `${at}/artifacts/essay?name=essay.md`, essay);
  return end({ summary: 'Handed in', claims: [{ text: 'The essay is there', evidence: [{ artifact: 'essay' }] }] });
}
for (;; lease = null) {
  const offer = { worker: TOWLINE_WORKER, workflows: ['essay'], wait_ms: 20000 };
  const claim = await call('POST', `/queues/${TOWLINE_QUEUE}/claims`, offer);
  if (!claim) continue;
  lease = claim.lease;
  const renewing = setInterval(() => call('POST', `/runs/${claim.run.id}/lease`, {}).catch(() => {}), lease.ttl_ms / 3);
  await work(`/runs/${claim.run.id}`, claim.input.topic).catch((error) => console.error(error.message));
  clearInterval(renewing);
  await call('DELETE', `/runs/${claim.run.id}/lease`).catch(() => {}); // at once, if it is still ours
}
