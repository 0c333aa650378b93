<?php
// phpredis against a real server. Argument: TCP port. One line `NAME: ok` or `NAME: FAILED why` a check.
$checks = [
    'connect' => function ($r) {
        check($r->ping() == true && $r->echo('x') === 'x' && $r->exists('nothing') == 0);
        check($r->client('setname', 'tester') && $r->info('server')['redis_mode'] === 'standalone');
    },
    'GEN' => function ($r) {
        $text = $r->rawCommand('GEN', 'k', 'hello', 'MAXTOKENS', '12', 'TEMP', '0', 'IGNOREEOS');
        $entries = array_values($r->xRange('k', '-', '+'));
        check(count($entries) === 2 && $entries[1]['text'] === $text && $entries[1]['finish'] === 'length');
    },
    'BLOCK' => function ($r) {
        $action = ['GEN', 'k', 'hello', 'MAXTOKENS', '12', 'IGNOREEOS', 'ID', 'one', 'BLOCK', '4000'];
        do {
            $text = $r->rawCommand(...$action);
        } while ($text === null || $text === false);
        check($text === $r->rawCommand(...$action) && $r->xLen('k') === 2);
    },
    'ASYNC and XREAD' => function ($r) {
        $last = $r->rawCommand('GEN', 's', 'hello', 'MAXTOKENS', '30', 'IGNOREEOS', 'ASYNC');
        $text = '';
        for ($end = null; $end === null;) {
            foreach ($r->xRead(['s' => $last], null, 4000)['s'] ?? [] as $last => $fields) {
                $text .= $fields['piece'] ?? '';
                $end = isset($fields['finish']) ? $fields : null;
            }
        }
        check($text === $end['text']);
    },
    'FORK' => function ($r) {
        $r->rawCommand('GEN', 'f', 'hello', 'MAXTOKENS', '3', 'IGNOREEOS');
        check($r->rawCommand('FORK', 'f', 'f1', 'f2') === 2 && $r->xLen('f2') === 2);
    },
    'CANCEL' => function ($r) {
        $r->rawCommand('SEAM', 'STEPS', '0');
        $r->rawCommand('GEN', 'c', 'hello', 'MAXTOKENS', '3000', 'IGNOREEOS', 'ASYNC');
        check($r->rawCommand('CANCEL', 'c') === 1);
        $r->rawCommand('SEAM', 'STEPS', '-1');
        check(array_values($r->xRevRange('c', '+', '-', 1))[0]['finish'] === 'cancelled');
    },
    'pipeline' => function ($r) {
        $out = $r->pipeline()->xAdd('p', '1-1', ['text' => 'a'])->xLen('p')->ping()->exec();
        check($out[0] === '1-1' && $out[1] === 1);
    },
    'MULTI' => function ($r) {
        $out = $r->multi()->rawCommand('GEN', 'm', 'x', 'MAXTOKENS', '2', 'IGNOREEOS')->xLen('m')->exec();
        check(strpos($out[0], '-') > 0 && $out[1] === 1);
    },
    'reconnect' => function ($r) {
        global $port;
        $r->close();
        $r->connect('127.0.0.1', $port);
        check($r->ping() == true);
    },
];

function check($condition)
{
    if (!$condition)
        throw new Exception('line ' . debug_backtrace()[0]['line']);
}

$port = (int)$argv[1];
foreach ($checks as $name => $run) {
    $r = new Redis();
    $r->connect('127.0.0.1', $port);
    try {
        $r->flushAll();
        $run($r);
        echo "$name: ok\n";
    } catch (Throwable $e) {
        echo "$name: FAILED ", str_replace("\n", ' ', $e->getMessage()), "\n";
    }
}
