// A reverse proxy on Node's own http: node _reverse_proxy.js PORT PORT_BEHIND PREFIX
// Takes the prefix off the path, streams both ways, answers 502 with a page where nobody is behind it, and 413 where a
// body has more than 1 MB, as others do by default.
const http = require("node:http");
const [port, behind, prefix] = process.argv.slice(2);

http
  .createServer((request, response) => {
    if (Number(request.headers["content-length"] ?? 0) > 1_000_000) {
      response.writeHead(413, { "content-type": "text/html", connection: "close" }).end("<html>413</html>");
      request.resume();
      return;
    }
    const path = request.url.startsWith(prefix) ? request.url.slice(prefix.length) : request.url;
    const headers = { ...request.headers, host: `127.0.0.1:${behind}` };
    const upstream = http.request({ host: "127.0.0.1", port: behind, path, method: request.method, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.headers);
      response.flushHeaders();
      answer.pipe(response);
      answer.on("error", () => response.destroy());
      answer.on("aborted", () => response.destroy());
    });
    upstream.on("error", () => {
      if (response.headersSent) response.destroy();
      else response.writeHead(502, { "content-type": "text/html" }).end("<html>502 Bad Gateway</html>");
    });
    response.on("close", () => upstream.destroy());
    request.pipe(upstream);
  })
  .listen(Number(port), "127.0.0.1");
