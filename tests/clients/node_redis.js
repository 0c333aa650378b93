// node-redis against a real server: what test_node_redis.py asks for.
const run = require('./node_checks');

run({
  async basics(c) {
    if ((await c.ping()) !== 'PONG') throw new Error('ping');
    if (!(await c.info()).includes('redis_version')) throw new Error('info');
  },
  async gen(c) {
    const text = await c.sendCommand(['GEN', 'n', 'hello', 'MAXTOKENS', '12', 'TEMP', '0', 'IGNOREEOS']);
    const entries = await c.xRange('n', '-', '+');
    if (entries.length !== 2 || entries[1].message.text !== text) throw new Error(JSON.stringify(entries));
  },
  async stream(c) {
    let id = await c.sendCommand(['GEN', 's', 'hello', 'MAXTOKENS', '30', 'TEMP', '0', 'IGNOREEOS', 'ASYNC']);
    const reader = c.duplicate();
    await reader.connect();
    let text = '';
    let end;
    while (!end) {
      const reply = await reader.xRead({ key: 's', id }, { BLOCK: 4000 });
      for (const { id: at, message } of reply ? reply[0].messages : []) {
        id = at;
        if (message.piece !== undefined) text += message.piece;
        if (message.finish !== undefined) end = message;
      }
    }
    await reader.quit();
    if (text !== end.text) throw new Error(`${text} is not ${end.text}`);
  },
  async multi(c) {
    const [id, n] = await c.multi().addCommand(['GEN', 'm', 'x', 'MAXTOKENS', '2', 'TEMP', '0', 'IGNOREEOS'])
      .exists('nothing').exec();
    if (!String(id).includes('-') || Number(n) !== 0) throw new Error(`${id} ${n}`);
  },
  async fork(c) {
    await c.sendCommand(['GEN', 'f', 'hello', 'MAXTOKENS', '3', 'IGNOREEOS']);
    if ((await c.sendCommand(['FORK', 'f', 'f1', 'f2'])) !== 2) throw new Error('fork');
  },
  async errors(c) {
    try {
      await c.sendCommand(['GEN', 'e', 'x', 'MAXTOKENS', '0']);
    } catch (e) {
      if (e.message.includes('MAXTOKENS')) return;
      throw e;
    }
    throw new Error('accepted');
  },
});
