// An authorization server that is neither ours nor the SDK's: npm's oidc-provider, with its own pages for sign-in and
// consent. Argument: the address of the MCP server that its tokens are for. Prints its own address when it listens.

import { createServer } from 'node:http';
import { Provider } from 'oidc-provider';

const resource = process.argv[2];
const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    scopes: ['openid', 'offline_access', 'tools'],
    features: {
      devInteractions: { enabled: true },
      registration: { enabled: true },
      resourceIndicators: {
        enabled: true,
        getResourceServerInfo: () => ({ scope: 'tools', audience: resource, accessTokenFormat: 'jwt' }),
      },
    },
  });
  server.on('request', provider.callback());
  console.log(issuer);
});
