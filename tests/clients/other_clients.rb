# redis-rb against a real server. Argument: TCP port. One line `NAME: ok` or `NAME: FAILED why` a check.
require 'redis'

PORT = Integer(ARGV[0])

def check(condition)
  raise "line #{caller_locations(1, 1)[0].lineno}" unless condition
end

CHECKS = {
  'connect' => lambda do |r|
    check(r.ping == 'PONG' && r.echo('x') == 'x' && r.exists('nothing') == 0)
    check(r.info('server')['redis_mode'] == 'standalone')
  end,
  'GEN' => lambda do |r|
    text = r.call('GEN', 'k', 'hello', 'MAXTOKENS', 12, 'TEMP', 0, 'IGNOREEOS')
    entries = r.xrange('k')
    check(entries.size == 2 && entries[1][1]['text'].b == text.b && entries[1][1]['finish'] == 'length')
  end,
  'BLOCK' => lambda do |r|
    action = ['GEN', 'k', 'hello', 'MAXTOKENS', 12, 'IGNOREEOS', 'ID', 'one', 'BLOCK', 4000]
    text = r.call(*action) while text.nil?
    check(text == r.call(*action) && r.xlen('k') == 2)
  end,
  'ASYNC and XREAD' => lambda do |r|
    last = r.call('GEN', 's', 'hello', 'MAXTOKENS', 30, 'IGNOREEOS', 'ASYNC')
    text = ''.b
    ending = nil
    until ending
      (r.xread('s', last, block: 4000)['s'] || []).each do |id, fields|
        last = id
        text << fields['piece'].b if fields['piece']
        ending = fields if fields['finish']
      end
    end
    check(text == ending['text'].b)
  end,
  'FORK' => lambda do |r|
    r.call('GEN', 'f', 'hello', 'MAXTOKENS', 3, 'IGNOREEOS')
    check(r.call('FORK', 'f', 'f1', 'f2') == 2 && r.xlen('f2') == 2)
  end,
  'CANCEL' => lambda do |r|
    r.call('SEAM', 'STEPS', 0)
    r.call('GEN', 'c', 'hello', 'MAXTOKENS', 3000, 'IGNOREEOS', 'ASYNC')
    cancelled = r.call('CANCEL', 'c')
    r.call('SEAM', 'STEPS', -1)
    check(cancelled == 1 && r.xrevrange('c', count: 1)[0][1]['finish'] == 'cancelled')
  end,
  'pipeline' => lambda do |r|
    out = r.pipelined { |p| p.xadd('p', { text: 'a' }, id: '1-1'); p.xlen('p'); p.ping }
    check(out == ['1-1', 1, 'PONG'])
  end,
  'MULTI' => lambda do |r|
    out = r.multi { |m| m.call('GEN', 'm', 'x', 'MAXTOKENS', 2, 'IGNOREEOS'); m.xlen('m') }
    check(out[0].include?('-') && out[1] == 1)
  end,
  'reconnect' => lambda do |r|
    r.close
    check(r.ping == 'PONG')
  end
}.freeze

CHECKS.each do |name, run|
  r = Redis.new(port: PORT)
  begin
    r.flushall
    run.call(r)
    puts "#{name}: ok"
  rescue StandardError => e
    puts "#{name}: FAILED #{e.class} #{e.message.tr("\n", ' ')}"
  end
end
