#!/bin/sh
# Says at once what this machine lacks for a target of the Makefile, each with the line that mends it. It runs before
# anything is downloaded, so it is plain sh and needs no Python.
#
#   PYTHON=python3 sh scripts/preflight.sh GOAL NEED...
#
# GOAL is the target that needs it, for the lines to name. A NEED is linux, bash, python, rust, cc or disk=MEGABYTES.
# Exit status: 0 if nothing is lacking, else 1.

PYTHON=${PYTHON:-python3}
OLDEST_PYTHON=11 # of Python 3; pyproject.toml says the same
NEWEST_PYTHON=14 # the newest for which every package of the locks has a wheel
OLDEST_RUST=88   # of Rust 1; Cargo.toml says the same

goal=$1
shift
lacks=0
wheel_helps=

main() {
    for need in "$@"; do
        case $need in
            linux) check_linux ;;
            bash) check_bash ;;
            python) check_python ;;
            rust) check_rust ;;
            cc) check_cc ;;
            disk=*) check_disk "${need#disk=}" ;;
            *)
                echo "preflight.sh: no such need: $need" >&2
                exit 2
                ;;
        esac
    done
    [ "$lacks" = 0 ] && exit 0
    [ -z "$wheel_helps" ] || printf '\n%s\n' "$wheel_helps" >&2
    exit 1
}

# lack WHAT LINE...: what is lacking, and the lines that mend it
lack() {
    [ "$lacks" = 0 ] && echo "This machine lacks for \`make $goal\`:" >&2
    lacks=$((lacks + 1))
    printf '\n  %s\n' "$1" >&2
    shift
    for line in "$@"; do
        printf '      %s\n' "$line" >&2
    done
}

# install APT DNF: the line of this system's package manager; another system's user gets a sentence
install() {
    if has apt-get; then
        echo "${sudo}apt-get install $1"
    elif has dnf; then
        echo "${sudo}dnf install $2"
    else
        echo "install it with your system's package manager (Debian calls it $1, Fedora $2)"
    fi
}

has() {
    command -v "$1" >/dev/null 2>&1
}

sudo='sudo '
[ "$(id -u)" = 0 ] && sudo=

# On another system the rest does not matter.
check_linux() {
    case $(uname -s) in
        Linux) return ;;
        Darwin) line="run it in a Linux container or virtual machine, such as: colima start && colima ssh" ;;
        *) line="on Windows: wsl --install, and then the same in its terminal" ;;
    esac
    lack "Linux, whose shared memory and process handles the runtime uses" "$line"
    exit 1
}

check_bash() {
    has bash || lack "bash, in which the Makefile's lines are written" "$(install bash bash)"
}

check_python() {
    version=$(python_version "$PYTHON")
    if ! fits "$version"; then
        found=$(other_python)
        what="Python 3.$OLDEST_PYTHON to 3.$NEWEST_PYTHON ($PYTHON is ${version:-not there})"
        if [ -n "$found" ]; then
            lack "$what" "make $goal PYTHON=$found"
        else
            lack "$what" "$(install "$(apt_python)" python3.13), then make $goal PYTHON=$(apt_python | sed 's/ .*//')"
        fi
    elif ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
        lack "Python's venv and ensurepip, which make an environment" "$(install "python$version-venv" python3)"
    fi
}

# The version of a Python as 3.N, or nothing.
python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

fits() {
    case $1 in
        3.*) [ "${1#3.}" -ge $OLDEST_PYTHON ] && [ "${1#3.}" -le $NEWEST_PYTHON ] ;;
        *) return 1 ;;
    esac
}

# Another Python on the PATH that fits, the newest first.
other_python() {
    minor=$NEWEST_PYTHON
    while [ "$minor" -ge $OLDEST_PYTHON ]; do
        if fits "$(python_version "python3.$minor")"; then
            echo "python3.$minor"
            return
        fi
        minor=$((minor - 1))
    done
}

# The newest Python that apt has, with its venv.
apt_python() {
    minor=$NEWEST_PYTHON
    while has apt-cache && [ "$minor" -ge $OLDEST_PYTHON ]; do
        if apt-cache show "python3.$minor-venv" >/dev/null 2>&1; then
            echo "python3.$minor python3.$minor-venv"
            return
        fi
        minor=$((minor - 1))
    done
    echo "python3.13 python3.13-venv"
}

check_rust() {
    version=$(rustc --version 2>/dev/null)
    minor=${version#rustc 1.}
    minor=${minor%%.*}
    if ! has cargo || ! has rustc; then
        if [ -x "$HOME/.cargo/bin/cargo" ]; then
            lack "cargo on the PATH" '. "$HOME/.cargo/env"'
            return
        fi
        lack "Rust 1.$OLDEST_RUST or later" "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" '. "$HOME/.cargo/env"'
    elif [ -z "$version" ]; then
        lack "a Rust toolchain that runs (rustc --version fails)" "rustup default stable"
    elif [ "$minor" -lt $OLDEST_RUST ]; then
        if has rustup; then
            lack "Rust 1.$OLDEST_RUST or later (this is $version)" "rustup update stable"
        else
            lack "Rust 1.$OLDEST_RUST or later (this is $version)" "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" '. "$HOME/.cargo/env"'
        fi
    else
        return
    fi
    tell_of_wheels
}

check_cc() {
    # Linking a program also finds a compiler without the C library's files, which Debian has in a package of its own.
    folder=$(mktemp -d 2>/dev/null) || {
        lack "a folder for temporary files (mktemp -d fails)" "export TMPDIR=FOLDER"
        return
    }
    if ! echo 'int main(void) { return 0; }' | cc -x c - -o "$folder/program" 2>/dev/null; then
        lack "a C compiler (cc) that makes programs" "$(install build-essential gcc)"
        tell_of_wheels
    fi
    rm -rf "$folder"
}

tell_of_wheels() {
    [ "$goal" = demo ] || [ "$goal" = serve ] || return
    wheel_helps="With a ready wheel of sgl-omni neither Rust nor a compiler is needed: make $goal WHEEL=FILE.whl"
}

# check_disk MEGABYTES: here, and where uv keeps what it downloads if that is another file system
check_disk() {
    check_free . "$1" "this folder"
    cache=${UV_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/uv}
    while [ ! -d "$cache" ]; do cache=$(dirname "$cache"); done
    if [ "$(file_system "$cache")" != "$(file_system .)" ]; then
        check_free "$cache" "$1" "uv's cache, which another disk can hold: export UV_CACHE_DIR=FOLDER"
    fi
}

check_free() {
    free=$(df -Pk "$1" | awk 'NR == 2 { print int($4 / 1024) }')
    if [ "$free" -lt "$2" ]; then
        lack "$2 MB of free disk for $3" "$1 has $free MB: free $(($2 - free)) MB, or go to a larger disk"
    fi
}

file_system() {
    df -Pk "$1" | awk 'NR == 2 { print $1 }'
}

main "$@"
