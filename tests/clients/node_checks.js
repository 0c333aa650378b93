// The runner of the node-redis checks: a fresh link, an empty server and one line a check, `NAME: ok` or
// `NAME: FAILED why`. Argument of the program: TCP port.
const { createClient } = require('redis');
const port = Number(process.argv[2]);

// checks: { NAME: async (client) => throws when it fails }, run in their order.
module.exports = async function run(checks) {
  for (const [name, check] of Object.entries(checks)) {
    const c = createClient({ socket: { port, host: '127.0.0.1' } });
    c.on('error', () => {}); // a lost link is what some checks are about
    await c.connect();
    try {
      await c.flushAll();
      await check(c);
      console.log(`${name}: ok`);
    } catch (e) {
      console.log(`${name}: FAILED ${String(e.stack).replace(/\n/g, ' | ')}`);
    }
    await c.disconnect();
  }
};
