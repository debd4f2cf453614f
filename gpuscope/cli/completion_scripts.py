"""Write the scripts with which bash, zsh and fish complete ``gpuscope`` on a command line.

Each script is generated from the parsers of all verbs, so that pressing Tab starts no Python. In
them a command is identified by its path: ``/lab/sweep``, or "" for the program itself.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence

from .command_tree import Command, Word

HELP = "help"
"""Completed, although it is not in the table of verbs."""


def bash(commands: Sequence[Command]) -> str:
    """Return the script for bash 4 or newer."""
    valued, offered = [], []
    for one in commands:
        for option in one.options:
            if option.value and not option.may_lack_value:
                places = "|".join(f"'{one.place} {name}'" for name in option.names)
                then = (
                    "_gpuscope_files"
                    if option.is_file
                    else f"_gpuscope_words {_quoted(option.choices)}".rstrip()
                )
                valued.append(f"        {places}) {then}; return ;;")
        words = [name for name, _ in _below(one)] + _choices(one.arguments)
        files = "files=1" if _takes_files(one) else "files="
        options = shlex.quote(" ".join(_names(one.options)))
        offered.append(
            f"        '{one.place}') options={options} words={shlex.quote(' '.join(words))} "
            f"{files} ;;"
        )
    return _BASH.format(
        places="|".join(f"'{place}'" for place in _places(commands)),
        valued="\n".join(valued),
        offered="\n".join(offered),
    )


def zsh(commands: Sequence[Command]) -> str:
    valued, offered = [], []
    for one in commands:
        for option in one.options:
            if option.value and not option.may_lack_value:
                places = "|".join(f"'{one.place} {name}'" for name in option.names)
                then = (
                    "_files"
                    if option.is_file
                    else f"compadd -- {_quoted(option.choices)}"
                    if option.choices
                    else f"_message {shlex.quote(option.value)}"
                )
                valued.append(f"    ({places}) {then}; return ;;")
        options = _described((name, option.help) for option in one.options for name in option.names)
        words = _described([*_below(one), *((word, "") for word in _choices(one.arguments))])
        files = "1" if _takes_files(one) else ""
        offered.append(
            f"    ('{one.place}')\n      options=({options})\n      verbs=({words})\n"
            f"      files={files} ;;"
        )
    return _ZSH.format(
        places="|".join(f"'{place}'" for place in _places(commands)),
        valued="\n".join(valued),
        offered="\n".join(offered),
    )


def fish(commands: Sequence[Command]) -> str:
    """Return the script for fish 3 or newer."""
    lines = []
    for one in commands:
        here = f"complete -c gpuscope -n '__gpuscope_at \"{one.place}\"'"
        for name, text in _below(one):
            lines.append(f"{here} -a {_fish(name)} -d {_fish(_first(text))}")
        for word in _choices(one.arguments):
            lines.append(f"{here} -a {_fish(word)}")
        if _takes_files(one):
            lines.append(f"{here} -F")
        for option in one.options:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in option.names
            )
            takes = ""
            if option.is_file:
                takes = " -r -F"
            elif option.choices:
                takes = f" -x -a {_fish(' '.join(option.choices))}"
            elif option.value and not option.may_lack_value:
                takes = " -x"
            lines.append(f"{here} {names}{takes} -d {_fish(_first(option.help))}")
    return _FISH.format(
        places=" ".join(_fish(place) for place in _places(commands)), lines="\n".join(lines)
    )


SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _places(commands: Iterable[Command]) -> list[str]:
    return [one.place for one in commands if one.place]


def _below(command: Command) -> list[tuple[str, str]]:
    """Return the verbs that may come next, ``help`` among those of the program."""
    own = [] if command.words else [(HELP, "the help of a verb")]
    return [*command.below, *own]


def _choices(arguments: Iterable[Word]) -> list[str]:
    return [choice for argument in arguments for choice in argument.choices]


def _takes_files(command: Command) -> bool:
    return any(argument.is_file for argument in command.arguments)


def _names(options: Iterable[Word]) -> list[str]:
    return [name for option in options for name in option.names]


def _quoted(words: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, words))


def _first(text: str) -> str:
    """Return the first part of a help text, which is what a menu has room for."""
    return text.partition("; ")[0].partition(". ")[0]


def _described(rows: Iterable[tuple[str, str]]) -> str:
    """Return words of zsh's ``_describe``, in which a colon ends the name."""
    made = []
    for name, text in rows:
        name = name.replace(":", "\\:")
        made.append(shlex.quote(f"{name}:{_first(text)}" if text else name))
    return " ".join(made)


def _fish(text: str) -> str:
    """Return a word of fish, whose quotes know two escapes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_BASH = r"""# bash completion for gpuscope, as printed by: gpuscope completion bash

_gpuscope_files() {{
    compopt -o default 2>/dev/null || mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}}

_gpuscope_words() {{
    mapfile -t COMPREPLY < <(compgen -W "$*" -- "$cur")
}}

_gpuscope_run() {{
    local i=2
    while ((i < COMP_CWORD)); do
        case ${{COMP_WORDS[i]}} in
        --history) ((i += 2)) ;;
        -*) [[ ${{COMP_WORDS[i]}} == -- || ${{COMP_WORDS[i]}} == -m ]] && break || ((i++)) ;;
        *) break ;;
        esac
    done
    if ((i + 1 == COMP_CWORD)) && [[ ${{COMP_WORDS[i]}} == -- ]]; then
        mapfile -t COMPREPLY < <(compgen -c -- "$cur")
    elif ((i < COMP_CWORD)) || [[ $cur != -* ]]; then
        _gpuscope_files
    else
        return 1
    fi
}}

_gpuscope() {{
    local IFS=$' \t\n' cur prev word place= options= words= files= i
    cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD - 1]}}
    COMPREPLY=()
    [[ $prev == "=" ]] && prev=${{COMP_WORDS[COMP_CWORD - 2]}}
    [[ $cur == "=" ]] && cur=
    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${{COMP_WORDS[i]}}
        [[ $i == 1 && $word == help ]] && continue
        case "$place/$word" in
        {places}) place=$place/$word ;;
        esac
    done
    case "$place $prev" in
{valued}
    esac
    [[ $place == /run ]] && _gpuscope_run && return
    case "$place" in
{offered}
    esac
    if [[ $cur == -* ]]; then
        _gpuscope_words "$options"
    elif [[ $words ]]; then
        _gpuscope_words "$words"
    elif [[ $files ]]; then
        _gpuscope_files
    fi
}}

complete -F _gpuscope gpuscope
"""

_ZSH = r"""#compdef gpuscope
# zsh completion for gpuscope, as printed by: gpuscope completion zsh

_gpuscope() {{
  local place= word previous=${{words[CURRENT-1]}} files=
  local -a options verbs
  integer i
  for ((i = 2; i < CURRENT; i++)); do
    word=${{words[i]}}
    [[ $i == 2 && $word == help ]] && continue
    case "$place/$word" in
    ({places}) place=$place/$word ;;
    esac
  done
  if [[ $place == /run ]]; then
    # what follows the script or the command is the trainer's
    for ((i = 3; i < CURRENT; i++)); do
      case ${{words[i]}} in
      (--history) ((i++)) ;;
      (--) words=("${{(@)words[i+1,-1]}}"); ((CURRENT -= i)); _normal; return ;;
      (--*) ;;
      (*) _files; return ;;
      esac
    done
  fi
  if [[ $PREFIX == --*=* ]]; then
    previous=${{PREFIX%%=*}}
    compset -P '*='
  fi
  case "$place $previous" in
{valued}
  esac
  case "$place" in
{offered}
  esac
  if [[ $PREFIX == -* ]]; then
    _describe -o option options
  elif (($#verbs)); then
    _describe verb verbs
  elif [[ -n $files ]]; then
    _files
  fi
}}

if [[ $funcstack[1] == _gpuscope ]]; then
  _gpuscope "$@"
else
  compdef _gpuscope gpuscope
fi
"""

_FISH = r"""# fish completion for gpuscope, as printed by: gpuscope completion fish

function __gpuscope_at
    set -l place ""
    set -l typed (commandline -opc)
    set -e typed[1]
    test "$typed[1]" = help; and set -e typed[1]
    for word in $typed
        contains -- "$place/$word" {places}; and set place "$place/$word"
    end
    test "$place" = "$argv[1]"
end

# What follows "run --" is a command of its own.
function __gpuscope_after_dashes
    set -l typed (commandline -opc)
    test "$typed[2]" = run; and contains -- -- $typed
end

function __gpuscope_own_command
    set -l typed (commandline -opc)
    set -l dashes (contains -i -- -- $typed)
    set -e typed[1..$dashes]
    complete -C (string join " " -- (string escape -- $typed) (commandline -ct))
end

complete -c gpuscope -f
complete -c gpuscope -n __gpuscope_after_dashes -a '(__gpuscope_own_command)'
{lines}
"""
