// node-redis against a real server: the nine checks of test_other_clients.py.
const assert = require('assert');
const run = require('./node_checks');
const SHORT = ['MAXTOKENS', '12', 'IGNOREEOS'];

run({
  async connect(c) {
    assert((await c.ping()) === 'PONG' && (await c.echo('x')) === 'x' && Number(await c.exists('nothing')) === 0);
    await c.sendCommand(['CLIENT', 'SETNAME', 'tester']);
    assert((await c.info('server')).includes('redis_mode:standalone'));
  },
  async GEN(c) {
    const text = await c.sendCommand(['GEN', 'k', 'hello', ...SHORT, 'TEMP', '0']);
    const entries = await c.xRange('k', '-', '+');
    assert(entries.length === 2 && entries[1].message.text === text && entries[1].message.finish === 'length');
  },
  async BLOCK(c) {
    const gen = ['GEN', 'k', 'hello', ...SHORT, 'ID', 'one', 'BLOCK', '4000'];
    let text = null;
    while (text === null) text = await c.sendCommand(gen);
    assert((await c.sendCommand(gen)) === text && (await c.xLen('k')) === 2);
  },
  async 'ASYNC and XREAD'(c) {
    let id = await c.sendCommand(['GEN', 's', 'hello', 'MAXTOKENS', '30', 'IGNOREEOS', 'ASYNC']);
    let text = '';
    let end;
    while (!end) {
      const reply = await c.xRead({ key: 's', id }, { BLOCK: 4000 });
      for (const { id: at, message } of reply ? reply[0].messages : []) {
        id = at;
        text += message.piece ?? '';
        if (message.finish !== undefined) end = message;
      }
    }
    assert.strictEqual(text, end.text);
  },
  async FORK(c) {
    await c.sendCommand(['GEN', 'f', 'hello', 'MAXTOKENS', '3', 'IGNOREEOS']);
    assert((await c.sendCommand(['FORK', 'f', 'f1', 'f2'])) === 2 && (await c.xLen('f2')) === 2);
  },
  async CANCEL(c) {
    await c.sendCommand(['SEAM', 'STEPS', '0']);
    await c.sendCommand(['GEN', 'c', 'hello', 'MAXTOKENS', '3000', 'IGNOREEOS', 'ASYNC']);
    assert((await c.sendCommand(['CANCEL', 'c'])) === 1);
    await c.sendCommand(['SEAM', 'STEPS', '-1']);
    assert((await c.xRevRange('c', '+', '-', { COUNT: 1 }))[0].message.finish === 'cancelled');
  },
  async pipeline(c) { // what is sent in one turn of the loop goes out together
    const [id, n, text] = await Promise.all([c.xAdd('p', '1-1', { text: 'a' }), c.xLen('p'),
      c.sendCommand(['GEN', 'p', 'b', ...SHORT])]);
    assert(id === '1-1' && n === 1 && text.length > 0);
  },
  async MULTI(c) {
    const [id, n] = await c.multi().addCommand(['GEN', 'm', 'x', 'MAXTOKENS', '2', 'IGNOREEOS']).xLen('m').exec();
    assert(String(id).includes('-') && Number(n) === 1, `${id} ${n}`);
  },
  async reconnect(c) { // the server closes the link; the library connects again by itself
    const before = await c.sendCommand(['CLIENT', 'ID']);
    const killer = c.duplicate();
    await killer.connect();
    await killer.sendCommand(['CLIENT', 'KILL', 'SKIPME', 'yes', 'TYPE', 'normal']);
    await killer.disconnect();
    let after = null;
    while (after === null) after = await c.sendCommand(['CLIENT', 'ID']).catch(() => null);
    assert(after !== before);
  },
});
