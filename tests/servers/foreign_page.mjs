// Pages that are not the worker's, in a real Chromium whose user is let in: what they try, and what they get to read.
// Arguments: the link that lets the browser in, the address of the foreign site, a tool's full name. Prints JSON:
// `own` (what the worker's own page may do), `read` (what foreign pages could read), `rebound` (what they are answered
// who come under a name that was made to point at this machine), `tried` (how often they tried).

import chromium from '@sparticuz/chromium';
import puppeteer from 'puppeteer-core';

const [link, foreign, tool] = process.argv.slice(2);
const worker = new URL(link).origin;
const named = new URL(foreign);
named.hostname = 'evil.example';

// What that package switches off or changes for its cloud, and people's browsers do not.
const LOOSE = [
  '--disable-web-security', '--allow-running-insecure-content', '--disable-site-isolation', '--disable-features',
  '--single-process', '--no-zygote',
];

const browser = await puppeteer.launch({
  args: [
    ...chromium.args.filter((one) => !LOOSE.some((flag) => one.startsWith(flag))),
    '--no-proxy-server',
    '--host-resolver-rules=MAP evil.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost',
  ],
  executablePath: await chromium.executablePath(),
  headless: 'shell',
});

// Runs in a foreign page.
const attack = async (base, toolName) => {
  const read = [];
  let tried = 0;
  const within = (promise) => Promise.race([promise, new Promise((done) => setTimeout(done, 2000))]);
  const changes = [
    ['POST', '/api/mcp/servers', '{"name": "evil", "command": "evil"}'],
    ['POST', '/api/mcp/test', '{"command": "evil"}'],
    ['POST', `/api/mcp/tools/${toolName}/call`, '{"arguments": {}}'],
    ['POST', '/api/mcp/servers/a/restart', ''],
    ['POST', '/api/mcp/link', ''],
    ['PATCH', '/api/mcp/servers/a', '{"description": "evil"}'],
    ['PUT', '/api/mcp/roots', '{"roots": []}'],
    ['DELETE', '/api/mcp/servers/a', undefined],
    ['GET', '/api/mcp/servers', undefined],
    ['GET', '/mcp', undefined],
    ['GET', '/healthz', undefined],
  ];
  for (const [method, path, body] of changes) {
    const given = method === 'GET' ? undefined : body;
    for (const mode of ['cors', 'no-cors']) {
      for (const type of ['text/plain', 'application/json']) {
        tried += 1;
        try {
          const reply = await fetch(base + path, {
            method, mode, body: given, credentials: 'include', headers: { 'Content-Type': type },
          });
          const text = await reply.text();
          if (text) read.push([mode, method, path, text]);
        } catch { /* that is what is to happen */ }
      }
    }
  }
  for (const [, path, body] of changes.filter(([method]) => method === 'POST')) {
    // A form into a frame, from a page of ours and from one without an origin.
    for (const sandbox of [null, 'allow-forms allow-scripts']) {
      tried += 1;
      const frame = document.createElement('iframe');
      if (sandbox !== null) frame.sandbox = sandbox;
      // What such a form sends is a name, an equals sign and a value: together, they are JSON.
      const name = body.replace(/}$/, body === '{}' ? '"x": "' : ', "x": "').replaceAll('"', '&quot;');
      const field = body ? `<input type=hidden name="${name}" value='"}'>` : '';
      const form = `<form method=post enctype=text/plain action="${base}${path}">${field}</form>`;
      const page = `${form}<script>document.forms[0].submit()</scr` + 'ipt>';
      const loaded = new Promise((done) => { frame.onload = done; });
      frame.srcdoc = page;
      document.body.append(frame);
      await within(loaded);
      await new Promise((done) => setTimeout(done, 50));
      frame.remove();
    }
  }
  for (const kind of ['iframe', 'img', 'script', 'embed']) {
    for (const path of ['/mcp', '/api/mcp/servers', '/api/mcp/servers/a/restart']) {
      tried += 1;
      const element = document.createElement(kind);
      const ended = new Promise((done) => { element.onload = done; element.onerror = done; });
      element.src = base + path;
      document.body.append(element);
      await within(ended);
      try {
        const text = element.contentDocument?.body?.innerText;
        if (text) read.push([kind, path, text]);
      } catch { /* nothing may be read */ }
      if (kind === 'img' && element.naturalWidth > 0) read.push([kind, path]);
      element.remove();
    }
  }
  tried += 2;
  const events = new EventSource(`${base}/api/mcp/events`, { withCredentials: true });
  await within(new Promise((done) => {
    events.onopen = () => { read.push(['EventSource']); done(); };
    events.onerror = done;
  }));
  events.close();
  const socket = new WebSocket(`${base.replace('http', 'ws')}/api/mcp/events`);
  await within(new Promise((done) => {
    socket.onopen = () => { read.push(['WebSocket']); done(); };
    socket.onerror = done;
  }));
  return { read, tried };
};

try {
  const own = await browser.newPage();
  await own.setBypassCSP(true);
  await Promise.all([own.waitForNavigation(), own.goto(link)]);
  await own.waitForFunction(() => window.location.pathname === '/mcp');
  const may = await own.evaluate(async () => [
    (await fetch('/api/mcp/servers')).status,
    (await fetch('/api/mcp/servers/a/restart', { method: 'POST' })).status,
  ]);

  const told = { own: may, read: [], rebound: [], tried: 0 };
  for (const site of [foreign, named.href]) {
    const page = await browser.newPage();
    await page.goto(site);
    const { read, tried } = await page.evaluate(attack, worker, tool);
    told.read.push(...read);
    told.tried += tried;
    await page.close();
  }

  const rebound = await browser.newPage();
  await rebound.setBypassCSP(true);
  const port = new URL(worker).port;
  for (const path of ['/healthz', '/mcp', '/api/mcp/servers']) {
    told.rebound.push((await rebound.goto(`http://evil.example:${port}${path}`)).status());
  }
  told.rebound.push(...await rebound.evaluate(async () => [
    (await fetch('/api/mcp/servers')).status,
    (await fetch('/api/mcp/servers/a/restart', { method: 'POST' })).status,
    (await fetch('/api/mcp/servers', { method: 'POST', body: '{"name": "evil", "command": "evil"}' })).status,
  ]));
  console.log(JSON.stringify(told));
} finally {
  await browser.close();
}
