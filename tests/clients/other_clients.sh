# redis-cli against a real server. Argument: TCP port. One line `NAME: ok` or `NAME: FAILED` a check.
# A pipeline, a transaction and a new link need one process: they come through its standard input.
# shellcheck shell=bash
port=$1
export LC_ALL=C # drawn bytes are no UTF-8: to grep a binary file, then

cli() {
    redis-cli -p "$port" --raw "$@"
}

last_finish() {
    cli XREVRANGE "$1" + - COUNT 1 | grep -aA1 -x finish | tail -1
}

check_connect() {
    [ "$(cli PING)" = PONG ] && [ "$(cli ECHO x)" = x ] && cli INFO server | grep -q '^redis_mode:standalone'
}

check_GEN() {
    local text
    text=$(cli GEN k hello MAXTOKENS 12 TEMP 0 IGNOREEOS | base64)
    [ -n "$text" ] && [ "$(cli XLEN k)" = 2 ] && [ "$(last_finish k)" = length ]
}

check_BLOCK() {
    local first
    first=$(cli GEN k hello MAXTOKENS 12 IGNOREEOS ID one BLOCK 60000 | base64)
    [ -n "$first" ] && [ "$(cli GEN k hello MAXTOKENS 12 IGNOREEOS ID one BLOCK 60000 | base64)" = "$first" ] &&
        [ "$(cli XLEN k)" = 2 ]
}

check_ASYNC_and_XREAD() {
    local last reply
    last=$(cli GEN s hello MAXTOKENS 30 IGNOREEOS ASYNC)
    while :; do
        reply=$(cli XREAD BLOCK 4000 STREAMS s "$last" | tr -d '\0')
        ! grep -aqx finish <<<"$reply" || return 0
        last=$(grep -aE '^[0-9]+-[0-9]+$' <<<"$reply" | tail -1)
        [ -n "$last" ] || return 1
    done
}

check_FORK() {
    cli GEN f hello MAXTOKENS 3 IGNOREEOS >/dev/null && [ "$(cli FORK f f1 f2)" = 2 ] && [ "$(cli XLEN f2)" = 2 ]
}

check_CANCEL() {
    cli SEAM STEPS 0 >/dev/null
    cli GEN c hello MAXTOKENS 3000 IGNOREEOS ASYNC >/dev/null
    [ "$(cli CANCEL c)" = 1 ] && cli SEAM STEPS -1 >/dev/null && [ "$(last_finish c)" = cancelled ]
}

check_pipeline() {
    printf 'XADD p 1-1 text a\r\nXLEN p\r\nGEN p b MAXTOKENS 3 IGNOREEOS\r\n' | redis-cli -p "$port" --pipe |
        grep -q 'errors: 0, replies: 3' && [ "$(cli XLEN p)" = 3 ]
}

check_MULTI() {
    local out
    out=$(printf 'MULTI\nGEN m x MAXTOKENS 2 IGNOREEOS\nXLEN m\nEXEC\n' | cli)
    grep -q QUEUED <<<"$out" && [ "$(tail -1 <<<"$out")" = 1 ]
}

check_reconnect() { # the link is closed under the second command's feet
    local out
    out=$(printf 'CLIENT ID\nCLIENT KILL SKIPME no TYPE normal\nCLIENT ID\n' | cli 2>/dev/null)
    [ "$(head -1 <<<"$out")" != "$(tail -1 <<<"$out")" ] && tail -1 <<<"$out" | grep -qE '^[0-9]+$'
}

for name in connect GEN BLOCK 'ASYNC and XREAD' FORK CANCEL pipeline MULTI reconnect; do
    cli FLUSHALL >/dev/null
    if "check_${name// /_}"; then
        echo "$name: ok"
    else
        echo "$name: FAILED"
    fi
done
