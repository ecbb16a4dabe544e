"""``sgl-omni completion SHELL``: a script that completes commands, options and their values in a shell.

The script holds all the words, so that completing starts no Python.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence

from sglang_omni.cli.command_words import Words, words_of_all
from sglang_omni.command_line import CommandParser

_EXPLAINED = """
to have it in every new shell:
  bash  echo 'eval "$(sgl-omni completion bash)"' >> ~/.bashrc
  zsh   echo 'eval "$(sgl-omni completion zsh)"' >> ~/.zshrc
  fish  sgl-omni completion fish > ~/.config/fish/completions/sgl-omni.fish
"""
_BASH = r"""# bash completion of sgl-omni
_sgl_omni() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}
  local path='' offered='' files='' prefix='' each
  # "--option=value" comes in three words from bash, and in one from zsh.
  if [[ $word == = ]]; then word=''
  elif [[ $before == = ]]; then before=${COMP_WORDS[COMP_CWORD-2]}
  elif [[ $word == --*=* ]]; then before=${word%%=*} prefix=${word%%=*}= word=${word#*=}
  fi
  for each in "${COMP_WORDS[@]:1:$((COMP_CWORD-1))}"; do
    case "${path:+$path }$each" in
      PATHS) path="${path:+$path }$each";;
    esac
  done
  case "$path" in
CASES  esac
  COMPREPLY=()
  if [[ $files ]]; then
    compopt -o filenames 2>/dev/null
    while IFS= read -r each; do COMPREPLY+=("$each"); done < <(compgen -P "$prefix" -f -- "$word")
  else
    while IFS= read -r each; do COMPREPLY+=("$each"); done < <(compgen -P "$prefix" -W "$offered" -- "$word")
  fi
}
complete -F _sgl_omni sgl-omni"""
# zsh runs what bash runs, through functions of its own for that.
_BEFORE_BASH_IN_ZSH = """autoload -Uz compinit bashcompinit
(( $+functions[compdef] )) || compinit
bashcompinit
"""


def main(argv: Sequence[str], *, prog: str) -> int:
    """Prints the script."""
    parser = CommandParser(
        prog=prog,
        description="Print a script that completes sgl-omni's commands, options and values.",
        epilog=_EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=list(_WRITERS), help="the shell that is to read it")
    write = _WRITERS[parser.parse_args(argv).shell]
    print(write(words_of_all()))
    return 0


def _bash(words: Mapping[str, Words]) -> str:
    paths = "|".join(shlex.quote(path) for path in words if path)
    cases = "".join(f"    {shlex.quote(path)})\n{_bash_case(each)}      ;;\n" for path, each in words.items())
    return _BASH.replace("PATHS", paths).replace("CASES", cases)


def _bash_case(words: Words) -> str:
    """What may follow one command: the value of the option before, an option, or another word."""
    lines = [f"{option}) offered='{' '.join(choices)}';;" for option, choices in words.values.items()]
    if words.free:
        lines.append(f"{'|'.join(sorted(words.free))}) files=1;;")
    lines.append("*) case $word in")
    lines.append(f"  -*) offered='{' '.join(words.options)}';;")
    lines.append(f"  *) offered='{' '.join(words.commands)}';;" if words.commands else "  *) files=1;;")
    lines.append("esac;;")
    body = "".join(f"        {line}\n" for line in lines)
    return f"      case $before in\n{body}      esac\n"


def _zsh(words: Mapping[str, Words]) -> str:
    return _BEFORE_BASH_IN_ZSH + _bash(words)


def _fish(words: Mapping[str, Words]) -> str:
    lines = ["# fish completion of sgl-omni", "complete -c sgl-omni -f"]
    for path, each in words.items():
        when = f"complete -c sgl-omni -n {shlex.quote(_fish_condition(path, words))}"
        lines += [f"{when} -a {name} -d {_fish_quoted(text)}" for name, text in each.commands.items()]
        if not each.commands:
            lines.append(f"{when} -F")
        for option, text in each.options.items():
            value = ""
            if option in each.values:
                value = f" -x -a {shlex.quote(' '.join(each.values[option]))}"
            elif option in each.free:
                value = " -r -F"
            lines.append(f"{when} -l {option[2:]}{value} -d {_fish_quoted(text)}")
    return "\n".join(lines)


def _fish_condition(path: str, words: Mapping[str, Words]) -> str:
    """True in fish after the words of a command, and none of its subcommands."""
    if not path:
        return "__fish_use_subcommand"
    below = [other.split()[-1] for other in words if other.rpartition(" ")[0] == path]
    conditions = [f"__fish_seen_subcommand_from {name}" for name in path.split()]
    if below:
        conditions.append(f"not __fish_seen_subcommand_from {' '.join(below)}")
    return "; and ".join(conditions)


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


_WRITERS = {"bash": _bash, "zsh": _zsh, "fish": _fish}
